"""The only place that imports llama_cpp."""
