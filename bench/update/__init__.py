"""The update alone on one GPU: tokens per second, share of the peak, memory, with each way to spend less of them.

It needs torch, triton, transformers and pydantic, and no engine: neither vLLM nor Ray is imported.
"""
