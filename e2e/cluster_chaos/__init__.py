"""Faults in jobs on a cluster with real nodes, and in the cluster: `python -m e2e.cluster_chaos`.

faults      what is struck, and how
trial       one job under faults, and what is wrong with it afterwards
report      what the faults cost, as a page
timeline    and as a picture
"""
