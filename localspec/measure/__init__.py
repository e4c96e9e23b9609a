"""Honest measurements through the worker: bench, verify, compare, advice. Knows no screen and no llama.cpp."""
