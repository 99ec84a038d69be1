"""The Kubernetes operator of RLJob. It loads neither torch nor Ray nor the trainer; it shares rljob_api with them.

    watches -> store -> queue -> reconcile: observe -> decide -> perform -> status, objects, events, the head's servers

main.py       the process: its parts, its start and its end
watches.py    what kopf watches, and store.py, what is known
queue.py      which job is looked at when
reconcile.py  one look: observe.py makes a snapshot.py, decide/ a plan.py, perform.py carries it out
render/       what should exist, as manifests; drift.py says whether it does
head/         Ray's Jobs API and the trainer's agent, in the job's head pod
kube/         the API server
lease.py      who leads
kubectl/      `kubectl rljob`, for people
"""
