"""The controller: one process that runs the loop. It passes metadata; tensors go from worker to worker.

driver.py      one attempt, from its claim to its exit record
assembly.py    its parts, wired together
loop.py        the training loop, a table of contents
reinforced.py  an RL step
rollouts.py    prompts -> engines -> rewards -> scored groups
batches.py     groups -> each rank's plan; advantages -> each rank's samples
sync.py        weights -> engines, and the probe that proves them
workers.py     the Ray workers: trainer ranks, rollout engines, reward host
requests.py    what somebody asks between two steps
metrics.py     what a step says about itself
"""
