"""The controller: one process that runs the loop. It passes metadata; tensors go from worker to worker.

driver.py    one attempt, from its claim to its exit record
loop.py      the training loop, a table of contents
rollouts.py  prompts -> engines -> rewards -> scored groups
workers.py   the Ray workers: trainer ranks, rollout engines, reward hosts
metrics.py   what a step says about itself
"""
