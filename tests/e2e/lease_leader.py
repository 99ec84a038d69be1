"""A process that leads as long as it can, and writes all the while: one ConfigMap after another.

    python -m tests.e2e.lease_leader NAMESPACE DURATION RENEW_DEADLINE RETRY

It says `leads` when it does, ends with LOST when the lease is lost, hands over on SIGTERM, and freezes on FREEZE.
"""

import asyncio
import itertools
import os
import signal
import sys
from dataclasses import replace

from rljob_operator.kube.client import Kube
from rljob_operator.kube.connection import Connection
from rljob_operator.kube.errors import KubeError
from rljob_operator.runtime.lease import LeaderLease, Terms

LOST = 7
FREEZE = signal.SIGUSR1


async def lead(namespace: str, terms: Terms) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(FREEZE, os.kill, os.getpid(), signal.SIGSTOP)  # between two turns of the loop
    async with await Connection.open() as connection:
        kube = Kube(connection, timeout=60)
        lease = LeaderLease(kube, namespace, "leader", terms=terms)
        await lease.acquire()
        print("leads", flush=True)
        keeping = asyncio.create_task(lease.keep(lambda: os._exit(LOST)))
        writing = asyncio.create_task(write(replace(kube, fence=lease.fence), namespace))
        await stop.wait()
        writing.cancel()
        await lease.release()
        await keeping


async def write(kube: Kube, namespace: str) -> None:
    for number in itertools.count():
        name = f"{os.getpid()}-{number}"
        head = {"namespace": namespace, "name": name, "labels": {"writer": str(os.getpid())}}
        try:
            await kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": head})
        except KubeError as error:  # a leader that thaws goes on trying, like a queue
            print("refused:", type(error).__name__, flush=True)
        await asyncio.sleep(0.002)


if __name__ == "__main__":
    _, namespace, duration, renew_deadline, retry = sys.argv
    asyncio.run(lead(namespace, Terms(int(duration), float(renew_deadline), float(retry))))
