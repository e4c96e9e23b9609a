"""Files before weights: catalogue, downloads, GGUF headers, vocabularies, pairing."""
