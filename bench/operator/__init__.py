"""What the operator costs on a real API server with fake nodes: docs/benchmarks/operator.md.

site.py       the control plane, the operator as a process, CPU seconds of every component, the API server's log
measures.py   creation, decision of a full store, rest, a job's whole life, KubeRay's RayJob
figures.py    what was measured
page.py       the page
"""
