"""The Kubernetes operator of RLJob. It loads neither torch nor Ray nor the trainer; it shares rljob_api with them.

    watches -> store -> queue -> reconcile: observe -> decide -> perform -> status, objects, events, the head's servers

main.py       the process: wires the parts, starts and ends them
reconcile.py  one look at one job
observe/      takes a Snapshot of a job, and derives its Facts
decide/       from the facts to a Plan; pure
render/       what should exist, as manifests; pure
perform/      carries a plan out
runtime/      what jobs share: work queue, store, watches, lease, key, health, metrics, logging
kube/         the API server
head/         Ray's Jobs API and the trainer's agent, in the job's head pod
kubectl/      `kubectl rljob`
"""
