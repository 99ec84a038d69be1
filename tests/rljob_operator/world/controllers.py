"""What else moves objects: nodes that run pods, Deployments, and the garbage collector.

Each step says whether it did anything.
"""

from collections.abc import Callable
from itertools import count

from rljob_operator.kube.kinds import CONFIG_MAP, DEPLOYMENT, POD, SECRET, VOLUME_CLAIM, Key, Kind, Manifest
from rljob_operator.observe.snapshot import is_deleting
from rljob_operator.render.digest import digest
from tests.rljob_operator.world.api_server import FOREGROUND, ApiServer, kind_of, owners, pod_of
from tests.rljob_operator.world.clock import now, stamp
from tests.rljob_operator.world.gangs import Gangs
from tests.rljob_operator.world.images import Images, tried_again

TEMPLATE = "pod-template-hash"

Lost = Callable[[Manifest], None]
"""Told of a pod whose processes have just died."""


NODES = ("node", "node-2", "node-3")


class Nodes:
    """Kubelets: a pod is Pending, then Running, then ready; one that is deleted ends when its time has come.

    Who waits for an image waits as long as it takes. patient: pods that are deleted go on for now.
    """

    def __init__(self, server: ApiServer, lost: Lost, images: Images, gangs: Gangs) -> None:
        self._server, self._lost, self._images, self._gangs = server, lost, images, gangs
        self.patient = False

    def step(self, pod: Manifest) -> bool:
        """The next thing that happens to it if nothing goes wrong."""
        if is_deleting(pod) and self.patient:
            return False
        if is_deleting(pod):
            self.end(pod)
        elif "nodeName" not in pod["spec"]:
            return self._bind(pod)
        elif phase(pod) == "Pending" and self._mountable(pod):
            return self._starts(pod)
        elif phase(pod) == "Running" and not is_ready(pod):
            self._says(pod, {}, ready=True)
        else:
            return False
        return True

    def _bind(self, pod: Manifest) -> bool:
        """To the first node that it does not avoid, with its gang."""
        free = NODES if self._gangs.lets(pod) else ()
        node = next((each for each in free if each not in avoided(pod["spec"])), None)
        if node is not None:
            self._server.patch(POD, Key.of(pod), {"spec": {"nodeName": node}})
        return node is not None

    def try_again(self, pod: Manifest) -> None:
        """To pull its image, in vain."""
        if (waiting := tried_again(pod)) is not None:
            self._says(pod, waiting, ready=False)

    def restart(self, pod: Manifest) -> None:
        """Ray's container has died; the kubelet starts it again."""
        self._lost(pod)
        self._says(pod, {"containerStatuses": _containers(pod, restarts(pod) + 1)}, ready=False)

    def fail(self, pod: Manifest) -> None:
        """As a node does that runs out of memory or disk."""
        self._lost(pod)
        self._says(pod, {"phase": "Failed", "message": "The node was low on resource: memory."}, ready=False)

    def end(self, pod: Manifest) -> None:
        """Now, however long it was to be given."""
        self._lost(pod)
        self._server.delete(pod, grace=0)

    def _starts(self, pod: Manifest) -> bool:
        before, waiting = self._server.version, self._images.unpulled(pod)
        self._says(pod, waiting or {"phase": "Running"} | _started(pod), ready=False)
        return self._server.version > before

    def _says(self, pod: Manifest, status: Manifest, *, ready: bool) -> None:
        conditions = [{"type": "Ready", "status": str(ready)}]
        self._server.patch(POD, Key.of(pod), {"status": status | {"conditions": conditions}}, "status")

    def _mountable(self, pod: Manifest) -> bool:
        return all(self._server.find(kind, Key(pod["metadata"]["namespace"], name)) for kind, name in _mounts(pod))


class Deployments:
    """Their controller, and that of ReplicaSets, in one: pods of an older template go first, one at a time."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._numbers = count(1)

    def step(self) -> bool:
        """Reconcile each once."""
        before = self._server.version
        for deployment in self._server.all(DEPLOYMENT):
            if not is_deleting(deployment):
                self._reconcile(deployment)
        return self._server.version > before

    def pods(self, deployment: Manifest) -> list[Manifest]:
        """Those that are not ending."""
        owned = self._server.owned_by(deployment["metadata"]["uid"])
        return [each for each in owned if kind_of(each) == POD and not is_deleting(each)]

    def _reconcile(self, deployment: Manifest) -> None:
        spec, made = deployment["spec"], digest(deployment["spec"]["template"])
        for pod in self.pods(deployment):
            if phase(pod) == "Failed":
                self._server.delete(pod, grace=0)
        pods = self.pods(deployment)
        new = [pod for pod in pods if pod["metadata"]["labels"][TEMPLATE] == made]
        old = [pod for pod in pods if pod not in new]
        if old and all(map(is_ready, new)):
            self._server.delete(old[0])
        for _ in range(spec["replicas"] - len(pods)):
            self._make(deployment, made)
        for pod in new[spec["replicas"] :]:
            self._server.delete(pod)
        status = {
            "observedGeneration": deployment["metadata"]["generation"],
            "readyReplicas": sum(map(is_ready, pods)),
            "updatedReplicas": len(new),
        }
        self._server.patch(DEPLOYMENT, Key.of(deployment), {"status": status}, "status")

    def _make(self, deployment: Manifest, made: str) -> None:
        template = deployment["spec"]["template"]
        self._server.create(pod_of(deployment, f"{next(self._numbers)}", template, {TEMPLATE: made}))


class GarbageCollector:
    def __init__(self, server: ApiServer) -> None:
        self._server = server

    def step(self) -> bool:
        """One pass. What has lost its owner goes, and so does what the foreground deletion of its owner waits for."""
        before = self._server.version
        living = {each["metadata"]["uid"] for each in self._server.objects.values()}
        for manifest in [*self._server.objects.values()]:
            if FOREGROUND in manifest["metadata"].get("finalizers", ()):
                self._foreground(manifest)
            elif not is_deleting(manifest) and [*owners(manifest)] and not living.intersection(owners(manifest)):
                self._server.delete(manifest)
        return self._server.version > before

    def _foreground(self, owner: Manifest) -> None:
        dependents = self._server.owned_by(owner["metadata"]["uid"])
        for dependent in dependents:
            if not is_deleting(dependent):
                self._server.delete(dependent, propagation="Background" if kind_of(dependent) == POD else "Foreground")
        if not dependents:
            left = [each for each in owner["metadata"]["finalizers"] if each != FOREGROUND]
            self._server.patch(kind_of(owner), Key.of(owner), {"metadata": {"finalizers": left}})


def avoided(spec: Manifest) -> set[str]:
    """Nodes that a pod of this spec must not have."""
    required = (
        spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    )
    terms = required.get("nodeSelectorTerms", ())
    return {node for term in terms for each in term["matchExpressions"] for node in each["values"]}


def phase(pod: Manifest) -> str:
    return str(pod["status"]["phase"])


def is_ready(pod: Manifest) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ()))


def restarts(pod: Manifest) -> int:
    return max((each["restartCount"] for each in pod["status"].get("containerStatuses", ())), default=0)


def _started(pod: Manifest) -> Manifest:
    """The containers of its status. Those that come before others have done what they had to."""
    done = {"restartCount": 0, "ready": True, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    first = [{"name": each["name"]} | done for each in pod["spec"].get("initContainers", ())]
    return {"initContainerStatuses": first, "containerStatuses": _containers(pod, 0)}


def _containers(pod: Manifest, count: int) -> list[Manifest]:
    """count: how often the first of them, Ray's, was restarted."""
    started = [each["name"] for each in pod["spec"]["containers"]]
    ended = {"terminated": {"exitCode": 1, "finishedAt": stamp(now())}} if count else {}
    return [
        {"name": name, "restartCount": 0 if index else count, "state": {"running": {}}}
        | {"lastState": {} if index else ended}
        for index, name in enumerate(started)
    ]


def _mounts(pod: Manifest) -> list[tuple[Kind, str]]:
    fields = (("configMap", "name", CONFIG_MAP), ("secret", "secretName", SECRET),
              ("persistentVolumeClaim", "claimName", VOLUME_CLAIM))  # fmt: skip
    volumes = pod["spec"]["volumes"]
    return [(kind, volume[field][name]) for volume in volumes for field, name, kind in fields if field in volume]
