"""Which models train: every architecture of `architectures.py` in every engine, beside transformers."""
