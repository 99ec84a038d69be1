"""The controller: one process that runs the loop. It passes metadata; tensors go from worker to worker.

driver.py      one attempt, from its claim to its exit record
interrupt.py   SIGTERM and SIGINT
attempt.py     the claim and the record
assembly.py    its parts, wired together; where it goes on
loop.py        the training loop, a table of contents
state.py       all that the controller knows and a checkpoint keeps
reinforced.py  an RL step
rollouts.py    prompts -> journal, or engines -> rewards -> scored groups
batches.py     groups -> each rank's plan; advantages -> each rank's samples
sync.py        weights -> engines, and the probe that proves them
engines.py     engines that are awake and hold the policy, whenever they are needed
workers.py     the Ray workers: trainer ranks, rollout engines, reward host
mender.py      replaces an engine or the reward host that is lost
checkpoints.py when a checkpoint is taken and durable, and from which one an attempt goes on
requests.py    what somebody asks between two steps
metrics.py     what a step says about itself
"""
