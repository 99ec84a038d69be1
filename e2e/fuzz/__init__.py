"""Malformed RLJobs by the thousand: `make fuzz`.

seeds.py        good documents
mutations.py    each broken in a way or three, drawn by a seed
verdicts.py     what the API server says of one, what `rljob validate` says, and what the operator makes of it
reconciling.py  what a running operator does with those that are admitted
"""
