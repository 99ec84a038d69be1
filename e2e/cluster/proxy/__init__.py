"""Faults between a client and the API server: `Proxy(access)`, and what goes wrong in `proxy.faults`.

call.py      a request in the terms of RBAC
exchange.py  a request on its way
faults.py    what goes wrong, and when
server.py    the proxy
"""

from e2e.cluster.proxy.call import WRITES, Call
from e2e.cluster.proxy.faults import Fault, answer, cut_watch, delay, drop, expire_watch, fail_watch, hang, run
from e2e.cluster.proxy.server import Proxy

__all__ = [
    "WRITES",
    "Call",
    "Fault",
    "Proxy",
    "answer",
    "cut_watch",
    "delay",
    "drop",
    "expire_watch",
    "fail_watch",
    "hang",
    "run",
]
