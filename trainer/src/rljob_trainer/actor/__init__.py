"""The policy and its optimisation: packed batches, FSDP2 sharding, supervised and policy-gradient steps."""
