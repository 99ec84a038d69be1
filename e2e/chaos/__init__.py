"""Faults into real runs on this machine: every process of a run is killed or frozen, in every phase of a step.

python -m e2e.chaos --faults 100 --seed 1 --output docs/benchmarks      (make chaos-local)

faults.py   which process, which signal, in which phase; injects it
trial.py    one run under faults: what each fault cost
weights.py  are two runs' weights equal, bit for bit?
report.py   the table and the picture
"""
