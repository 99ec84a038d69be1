"""`make bench-learning`: does it learn, does it learn from its rewards alone, and as well as another implementation.

arms.py       what is trained: tasks, engines, controls, every advantage and loss, TRL
training.py   one arm with one seed: a run of `rljob`, or of TRL (trl_trainer.py), in a process of its own
campaign.py   many runs at a time; stop.py: how Ctrl-C and SIGTERM end them
results.py    one line of learning.jsonl each; what has one for this commit is not run again
page.py       learning.md from learning.jsonl alone; comparison.py: beside TRL; picture.py: learning.png
"""
