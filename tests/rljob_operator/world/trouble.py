"""What goes wrong by no fault of the operator."""

from collections.abc import Callable, Mapping

from rljob_api.contract import ExitCode
from rljob_operator.kube.kinds import POD, RAY_CLUSTER, SECRET, Manifest
from rljob_operator.observe.snapshot import is_deleting
from tests.rljob_operator.world.api_server import ApiServer, owners
from tests.rljob_operator.world.controllers import Nodes, phase
from tests.rljob_operator.world.heads import Heads
from tests.rljob_operator.world.images import is_unpulled
from tests.rljob_operator.world.kuberay import TYPE, holds
from tests.rljob_operator.world.user import KEY

IDLE_SECONDS = 300.0
"""Half of how long the operator waits for a sign of life: faults are not counted too low."""

_FREE = (ExitCode.DONE, ExitCode.STOPPED)


class Trouble:
    """faults: how often something happened that may cost the job a restart. Trouble that finds nobody does nothing."""

    def __init__(self, server: ApiServer, heads: Heads, nodes: Nodes) -> None:
        self._server, self._heads, self._nodes = server, heads, nodes
        self.faults = 0
        self._idle = 0.0
        self._losses: Mapping[str, Callable[[Manifest], None]] = {
            "evicted": server.delete,
            "failed": nodes.fail,
            "gone": nodes.end,
        }

    def nobody_acts(self, seconds: float) -> None:
        """Drivers that do not begin, and heads that are not seen to, are given up after a while."""
        before = self._idle
        self._idle += seconds
        self.faults += int(self._idle // IDLE_SECONDS - before // IDLE_SECONDS)

    def driver_ends(self, code: int, *, recorded: bool = True) -> None:
        """The newest one, where it has begun."""
        living = [driver for driver in self._heads.living() if driver.job is not None]
        if living:
            self.faults += code not in _FREE
            living[-1].end(code, recorded=recorded)

    def fabric_is_slow(self) -> None:
        """The newest driver blames a worker."""
        living = [driver for driver in self._heads.living() if driver.job is not None]
        if living and (workers := self._pods("worker")):
            self.faults += 1
            living[-1].blames(workers[0]["metadata"]["name"])

    def pod_is_lost(self, kind: str, how: str) -> None:
        """kind: head or worker. how: evicted, failed or gone."""
        for pod in self._pods(kind)[:1]:
            if phase(pod) == "Running":
                self._count(pod)
                self._losses[how](pod)

    def pod_without_image_is_lost(self, how: str) -> None:
        """One that waits for it, as users delete such pods, and nodes evict them that are full."""
        waiting = [pod for pod in self._server.all(POD) if is_unpulled(pod) and not is_deleting(pod)]
        for pod in waiting[:1]:
            if phase(pod) == "Pending":
                self._losses[how](pod)

    def kubelets_try_again(self) -> None:
        for pod in self._server.all(POD):
            if phase(pod) == "Pending" and not is_deleting(pod):
                self._nodes.try_again(pod)

    def head_restarts(self) -> None:
        for pod in self._pods("head"):
            if phase(pod) == "Running":
                self._count(pod)
                self._nodes.restart(pod)

    def cluster_is_deleted(self, propagation: str = "Background") -> None:
        """By somebody else."""
        cluster = self._server.find(RAY_CLUSTER, KEY)
        if cluster is not None and not is_deleting(cluster):
            self.faults += 1
            self._server.delete(cluster, propagation=propagation)

    def secret_is_deleted(self) -> None:
        """By somebody. What runs does not notice; pods that come later need it."""
        for secret in self._server.all(SECRET):
            self._server.delete(secret)

    def server_is_lost(self, how: str) -> None:
        """Of a reward model."""
        for pod in self._server.all(POD):
            if TYPE not in pod["metadata"]["labels"] and phase(pod) == "Running" and not is_deleting(pod):
                self._losses[how](pod)
                return

    def _count(self, pod: Manifest) -> None:
        """The head of a cluster that was up is what no cluster survives; before that KubeRay makes another."""
        cluster = self._server.find(RAY_CLUSTER, KEY)
        if (
            pod["metadata"]["labels"][TYPE] == "head"
            and cluster is not None
            and holds(cluster, "RayClusterProvisioned")
        ):
            self.faults += cluster["metadata"]["uid"] in owners(pod)

    def _pods(self, kind: str) -> list[Manifest]:
        pods = [pod for pod in self._server.all(POD) if pod["metadata"]["labels"].get(TYPE) == kind]
        return [pod for pod in pods if not is_deleting(pod)]
