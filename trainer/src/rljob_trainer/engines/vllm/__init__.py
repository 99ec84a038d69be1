"""Engine vllm: vLLM in the engine process."""
