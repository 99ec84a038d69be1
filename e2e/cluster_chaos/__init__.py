"""Faults in jobs on a cluster with real nodes, and in the cluster: `python -m e2e.cluster_chaos`.

faults           what is struck, and how
trial            one job under faults, and what is wrong with it afterwards
├── looks            beside it, again and again, at what is not there any more at its end:
├── volume_watch     attempts, checkpoints, finished groups
├── cluster_watch    pods and drivers
├── leftovers        what its deletion leaves
└── verdicts         what is wrong, from all of these
report           what the faults cost, and what the verdicts rest on, as a page
timeline         and as a picture
"""
