"""A conversation: messages, thinking, storage."""
