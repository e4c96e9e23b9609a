"""The speculative loop: token choice, drafters, draft length, engine, events, figures."""
