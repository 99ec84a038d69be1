"""Generation of responses behind one protocol: `engine.RolloutEngine`, made by `hf` (transformers) and `vllm`."""
