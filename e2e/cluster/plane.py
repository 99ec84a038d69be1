"""A Kubernetes control plane on this machine, in one folder.

up      starts what does not run, so it also mends what a crash left
down    ends every process of the cluster, and removes the folder
"""

import shutil
import signal
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import gangs, locks, objects, processes
from e2e.cluster import kueue as queues
from e2e.cluster.access import Access
from e2e.cluster.binaries import DEFAULT, GANGS, KUEUE, cache
from e2e.cluster.build import build
from e2e.cluster.components import CONTROLLERS, FAKE_NODES, STORAGE, Component
from e2e.cluster.components import KUEUE as QUEUES
from e2e.cluster.errors import ClusterError
from e2e.cluster.health import wait_until_ready
from e2e.cluster.layout import HOST, Layout, load, make
from e2e.nodes import network
from e2e.nodes import up as real_nodes

EVERY = {component.name: component for component in (*STORAGE, *CONTROLLERS, QUEUES, *gangs.EVERY, *FAKE_NODES)}
"""In the order of starting; stopped the other way round, for an API server that outlives its etcd hangs."""

LISTENERS = tuple(listener for component in EVERY.values() for listener in component.listeners)

STOP_SECONDS = 10.0
"""After which a component that was asked to stop is killed."""


_LESS_COLLECTION = {"GOGC": "300", "GOMEMLIMIT": "10GiB"}
"""For Go's collector: with few cores and enough memory, a fifth of the API server's time was its.

10,000 jobs are 6 GiB of live heap there."""


@dataclass(frozen=True)
class Plane:
    folder: Path

    @property
    def layout(self) -> Layout:
        layout = load(self.folder)
        if layout is None:
            raise ClusterError(f"there is no cluster in {self.folder}: start one with make cluster-up")
        return layout

    @property
    def access(self) -> Access:
        """The administrator's."""
        return Access(self.layout.kubeconfig, cache=self.folder / "kubectl")

    @property
    def running(self) -> list[str]:
        """Components that have a process, be it frozen."""
        found = processes.find(self.folder)
        return [name for name in EVERY if name in found]

    def up(self, nodes: int = 4, gpus: int = 8, kubelets: int = 0, kueue: bool = False, gang: str = "") -> list[str]:
        """Bring up what does not run; returns the names of what was started.

        nodes: fake nodes, with `gpus` GPUs each. A node that exists keeps its GPUs.
        kubelets: real nodes; a cluster has either kind.
        kueue: with Kueue; a cluster that has it keeps it.
        gang: with that scheduler of gangs; a cluster that has one keeps it.
        """
        self.refuse_others(kubelets, gang)  # before builds, which take long
        build((*DEFAULT, *(KUEUE if kueue else ()), *GANGS.get(gang, ())))
        if kubelets:
            real_nodes.prepare()
        with locks.locked(self.folder, locks.MARKER):
            self.refuse_others(kubelets, gang)
            if kubelets:
                real_nodes.refuse_other_images(self.folder)
            address = network.free_address() if kubelets else HOST
            layout = load(self.folder) or make(self.folder, LISTENERS, address, gang)
            running = self.running
            if kueue:
                queues.prepare(layout)
            queued = (QUEUES,) if queues.is_prepared(layout) else ()
            wanted = (*STORAGE, *CONTROLLERS, *queued, *gangs.components(layout), *(() if kubelets else FAKE_NODES))
            missing = [component.name for component in wanted if component.name not in running]
            try:
                self._bring_up(layout, nodes, gpus, kubelets)
                wait_until_ready(layout, wanted)
            except BaseException:
                self._stop(missing)
                raise
            return missing

    def refuse_others(self, kubelets: int, gang: str = "") -> None:
        """Raises ClusterError where there is a cluster of the other kind of nodes, or without that scheduler."""
        layout = load(self.folder)
        if layout is not None and gang not in ("", layout.gang):
            raise ClusterError(f"the cluster in {self.folder} lacks {gang}: take it down first (make cluster-down)")
        if layout is not None and layout.has_real_nodes != (kubelets > 0):
            kind = "real" if layout.has_real_nodes else "fake"
            raise ClusterError(f"the cluster in {self.folder} has {kind} nodes: take it down first (make cluster-down)")

    def _bring_up(self, layout: Layout, nodes: int, gpus: int, kubelets: int) -> None:
        if kubelets:
            network.make_bridge(self.folder, layout.address)
        for component in STORAGE:
            self._start(layout, component)
            wait_until_ready(layout, [component])
        self._start(layout, *CONTROLLERS)
        objects.install_kuberay(self.access)
        if queues.is_prepared(layout):
            self._start_kueue(layout)
        gangs.install(self.access, layout)
        self._start(layout, *gangs.components(layout))
        if kubelets:
            real_nodes.up(layout, self.access, kubelets)
            return
        objects.install_rljob(self.access)  # to real nodes it comes with the chart
        self._start(layout, *FAKE_NODES)
        objects.install_nodes(self.access, nodes, gpus)

    def _start_kueue(self, layout: Layout) -> None:
        """The API server calls its webhooks only once it listens."""
        queues.install(self.access, layout)
        self._start(layout, QUEUES)
        wait_until_ready(layout, [QUEUES])
        queues.open_gates(self.access, layout)

    def add_kueue(self) -> None:
        """To a cluster that runs, as an administrator installs it later."""
        build(KUEUE)
        with locks.locked(self.folder, locks.MARKER):
            queues.prepare(self.layout)
            self._start_kueue(self.layout)

    def remove_kueue(self) -> None:
        """With its kinds. Queues, and jobs in them, must be deleted before."""
        with locks.locked(self.folder, locks.MARKER):
            queues.close_gates(self.access, self.layout)
            self._stop([QUEUES.name])
            queues.uninstall(self.access, self.layout)

    def down(self) -> bool:
        """False where there was nothing."""
        if not locks.is_cluster(self.folder) and not processes.find(self.folder):
            return False
        with locks.locked(self.folder, locks.MARKER):
            self._stop(EVERY)  # before the nodes, whose watches would be waited for
            busy = real_nodes.down(self.folder)
            self._stop(processes.find(self.folder))
            # Renamed first, because another process may create the folder again at once.
            removed = tempfile.mkdtemp(prefix=f"{self.folder.name}-", dir=self.folder.parent)
            shutil.rmtree(self.folder.rename(removed))
        if busy:
            names = " ".join(str(each) for each in busy)
            raise ClusterError(f"all is removed but cgroups that are in use: end what runs there, then rmdir {names}")
        return True

    def start(self, name: str) -> None:
        """Start one component and wait until it is ready."""
        with locks.locked(self.folder, locks.MARKER):
            self._start(self.layout, EVERY[name])
            wait_until_ready(self.layout, [EVERY[name]])

    def stop(self, name: str, grace: float = STOP_SECONDS) -> None:
        """Stop one component and wait until it is gone. grace: seconds after which it is killed; 0 kills it at once."""
        with locks.locked(self.folder, locks.MARKER):
            self._stop([name], grace)

    @contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """Meanwhile a component keeps its connections and answers nothing."""
        (process,) = processes.find(self.folder)[name]
        processes.send(process, signal.SIGSTOP)
        try:
            yield
        finally:
            processes.send(process, signal.SIGCONT)

    def _start(self, layout: Layout, *components: Component) -> None:
        """Start those that do not run."""
        running = self.running
        for component in components:
            if component.name not in running:
                # HOME: no settings of the user's
                variables = {"HOME": str(self.folder), **_LESS_COLLECTION, **component.variables}
                log = layout.log(component.name)
                processes.start(self.folder, component.name, component.command(layout), log, variables)

    def _stop(self, names: Iterable[str], grace: float = STOP_SECONDS) -> None:
        """One after the other, the last started first."""
        found = processes.find(self.folder)
        for name in reversed(list(names)):
            for process in found.get(name, ()):
                processes.stop(process, grace)


def default_folder() -> Path:
    return cache() / "cluster"
