"""How soon a released quota is used again, by RLJobs and by RayJobs under Kueue: docs/benchmarks/queue.md.

queues.py    a cohort of queues with borrowing
measure.py   watches releases and starts
"""
