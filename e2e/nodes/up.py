"""Real nodes of a cluster: started, and taken away without a trace."""

import fcntl
import json
import time
from collections.abc import Iterable
from pathlib import Path

from e2e.cluster.access import Access
from e2e.cluster.binaries import NODES
from e2e.cluster.build import build
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import Layout
from e2e.nodes import addons, agents, builder, cgroups, images, kuberay, network, packages, store
from e2e.nodes.machine import Machine, machines, mark

READY_SECONDS = 300
"""Far above what a node needs, for the machine may be busy."""

LOOK_SECONDS = 5
"""How long a node is waited for before its programs are looked at."""

GIVEN = "images.json"
"""In a node's folder: numbers of the images that it was given when it was made, by name. It is never given others."""


def prepare() -> None:
    """All that takes long the first time: Debian's packages, programs, images."""
    packages.ensure()
    build(NODES)
    images.ensure(images.SYSTEM)


def refuse_other_images(cluster: Path) -> None:
    """Raises ClusterError where some node holds other images than are built now: pods there would run the old ones."""
    with store.locked(fcntl.LOCK_SH):
        built = store.stored()
    for node in machines(cluster):
        if not _images(node).exists():  # it gets those of now when it starts
            continue
        record = node.folder / GIVEN
        given = json.loads(record.read_text()) if record.exists() else {}  # none: what gave it some was cut off
        other = sorted(name for name, number in built.items() if given.get(name) != number)
        other = [name for name in other if name != images.NEWER_OPERATOR]  # for clusters that the scenarios make
        if other:
            raise ClusterError(
                f"{node.name} of the cluster in {cluster} was made before these images were built: {', '.join(other)};"
                " take the cluster down first (make cluster-down)"
            )


def up(layout: Layout, access: Access, count: int) -> None:
    """Start what does not run of `count` nodes, and wait for KubeRay, and until pods have names and volumes."""
    cgroups.keep_settings(layout.folder)
    nodes = [Machine(layout.folder, number) for number in range(count)]
    for node in nodes:
        start(layout, node)
    addons.install(access, layout.folder / "volumes")
    kuberay.install(access)
    wait_until_ready(layout, access, nodes)
    available = ("wait", "deployment", "--for=condition=Available", f"--timeout={READY_SECONDS}s")
    access.kubectl(*available, f"--namespace={addons.SYSTEM_NAMESPACE}", "--all")
    access.kubectl(*available, *kuberay.PODS)


def start(layout: Layout, node: Machine) -> None:
    if node.init is None:
        if not _images(node).exists():
            given = store.clone(_images(node))
            (node.folder / GIVEN).write_text(json.dumps(given))
        network.plug(node, node.boot(), layout.address)
    agents.start(layout, node)


def _images(node: Machine) -> Path:
    """containerd's folder."""
    return node.folder / "lib/containerd"


def wait_until_ready(layout: Layout, access: Access, nodes: Iterable[Machine]) -> None:
    """Raises ClusterError with the end of the kubelet's log. A program that has ended is started again, as on a machine
    where systemd does so: the kubelet ends where containerd answers and is not quite ready.
    """
    deadline = time.monotonic() + READY_SECONDS
    for node in nodes:
        for what in ("create", "condition=Ready"):
            while (error := _missing(access, what, node)) is not None:
                if time.monotonic() > deadline:
                    raise ClusterError(f"{error}\n{agents.end_of_log(node, 'kubelet')}")
                agents.start(layout, node)


def _missing(access: Access, what: str, node: Machine) -> ClusterError | None:
    """Why the node is not so, after a while."""
    try:
        access.kubectl("wait", f"--for={what}", f"--timeout={LOOK_SECONDS}s", f"node/{node.name}")
    except ClusterError as error:
        return error
    return None


def down(cluster: Path) -> list[Path]:
    """Everything of all nodes but their folders; with the last cluster, what all of them shared, too.

    Harmless where there are none. Returns cgroups that are in use.
    """
    nodes = machines(cluster)
    for node in nodes:
        node.power_off()
    network.remove_bridge(cluster)
    if not nodes and not cgroups.is_recorded(cluster):  # nor has it changed anything, and it need not be root's
        return []
    cgroups.restore_settings(cluster)
    if cgroups.no_cluster_is_recorded():
        builder.remove_notes()
    return cgroups.remove(mark(cluster))
