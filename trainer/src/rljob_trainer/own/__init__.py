"""An advantage and a loss of the user's own: spec.algorithm.advantageFrom and lossFrom.

load.py       the function of a file or module, as reward files are loaded; paths that hold on every node
advantage.py  called by the driver          loss.py  called by the ranks
trial.py      one call on small arrays; check.py makes it in a process of its own, before anything starts
"""
