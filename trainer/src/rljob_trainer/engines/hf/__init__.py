"""Engine hf: the model of transformers with batching of our own."""
