"""The ranks: sharded models, their optimizers, and the supervised and policy-gradient steps on packed batches."""
