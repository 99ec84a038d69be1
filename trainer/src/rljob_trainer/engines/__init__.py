"""Rollout engines behind one protocol (`engine.RolloutEngine`): `hf` (transformers) and `vllm`."""
