"""The training loop. It passes metadata; tensors go from worker to worker.

loop.py        the loop, a table of contents
state.py       what the driver knows and a checkpoint keeps
reinforced.py  one RL step
batches.py     groups -> the plan of each rank; advantages -> the samples of each rank
checkpoints.py when a checkpoint is taken and durable
requests.py    what a person or the operator asks for between two steps
metrics.py     the metrics of a step
"""
