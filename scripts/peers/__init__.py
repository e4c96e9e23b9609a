"""The parts of `scripts/bench_peers`: localspec beside the other ways to run a GGUF with a draft."""
