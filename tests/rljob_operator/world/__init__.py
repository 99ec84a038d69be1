"""A Kubernetes for one RLJob and its operator, in memory and on a clock that jumps.

    user.py, trouble.py                     who starts and stops jobs, and what goes wrong
          |
    api_server.py  <-- kuberay.py, controllers.py (nodes, Deployments, garbage collection)
       |        ^            |      images.py: what nodes can pull; kueue.py: quota; gangs.py: PodGroups
       |        |         heads.py, drivers.py: Ray and the agent in head pods, drivers, the volume
    watching.py |            ^
       |     connection.py --'   what the operator's clients expect of HTTP
       v        |
    process.py  wire.py          the operator's process, and the fate of each call that it makes
       |
    witness.py                   no plan claims what its snapshot does not show
    invariants.py                what holds after every write

Nothing of the operator is replaced but its sockets and its clock: queue, store, watch handlers, decisions and clients
are the real ones.
"""
