"""Run big local GGUF models at reading speed by speculative decoding."""

__version__ = "0.1.0"
