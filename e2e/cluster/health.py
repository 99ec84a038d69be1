"""Waits for components, and says what became of one that does not get ready."""

import ssl
import time
import urllib.request
from collections.abc import Iterable

from e2e.cluster import processes
from e2e.cluster.components import Component
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import Layout

READY_SECONDS = 120.0
"""Far above what a component needs, for the machine may be busy."""

ANSWER_SECONDS = 5.0

LOOK_SECONDS = 0.1
LOOKS = 20
"""So often a process is missed before it counts as ended: a new one shows its own environment only after a moment."""

LOG_LINES = 15


def wait_until_ready(layout: Layout, components: Iterable[Component]) -> None:
    trust = ssl.create_default_context(cafile=layout.pki("ca.crt"))
    deadline = time.monotonic() + READY_SECONDS
    for component in components:
        missed = 0
        while not is_healthy(component.health_url(layout), trust):
            time.sleep(LOOK_SECONDS)
            missed = 0 if component.name in processes.find(layout.folder) else missed + 1
            if missed == LOOKS:
                raise ClusterError(_report(component.name, "ended", layout))
            if time.monotonic() > deadline:
                raise ClusterError(_report(component.name, f"is not ready after {READY_SECONDS:.0f} s", layout))


def is_healthy(url: str, trust: ssl.SSLContext) -> bool:
    """Asks directly: a proxy that the environment names would not find this machine."""
    handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=ANSWER_SECONDS) as answer:
            return bool(answer.status == 200)
    except OSError:  # refused, no answer in time, or an HTTP error
        return False


def _report(name: str, what: str, layout: Layout) -> str:
    log = layout.log(name)
    last = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return "\n".join([f"{name} {what}; the end of {log}:", *last])
