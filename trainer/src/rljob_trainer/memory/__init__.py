"""GPU memory: what a job is going to take, and what held it if it did not suffice."""
