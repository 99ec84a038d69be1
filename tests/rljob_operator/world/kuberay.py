"""KubeRay 1.6 as far as the operator can tell it from the real one.

It finds a cluster's pods by the label with the cluster's name, whoever owns them, and counts those that are ending. So
pods of a deleted cluster pass for those of a new one of its name.
"""

from itertools import count

from rljob_operator.kube.kinds import POD, RAY_CLUSTER, Key, Manifest
from rljob_operator.observe.snapshot import is_deleting
from tests.rljob_operator.world.api_server import ApiServer, pod_of
from tests.rljob_operator.world.clock import now, stamp
from tests.rljob_operator.world.controllers import is_ready, phase

CLUSTER, TYPE = "ray.io/cluster", "ray.io/node-type"
KEEP_LOST_HEAD = "ray.io/disable-provisioned-head-restart"


class KubeRay:
    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._numbers = count(1)

    def step(self) -> bool:
        """Reconcile every cluster once."""
        before = self._server.version
        for cluster in self._server.all(RAY_CLUSTER):
            if not is_deleting(cluster):
                self._reconcile_pods(cluster)
                self._report(cluster)
        return self._server.version > before

    def pods(self, cluster: Manifest, kind: str | None = None) -> list[Manifest]:
        """kind: head or worker."""
        wanted = {CLUSTER: cluster["metadata"]["name"]} | ({TYPE: kind} if kind else {})
        namespace = cluster["metadata"]["namespace"]
        here = [pod for pod in self._server.all(POD) if pod["metadata"]["namespace"] == namespace]
        return [pod for pod in here if wanted.items() <= pod["metadata"]["labels"].items()]

    def _reconcile_pods(self, cluster: Manifest) -> None:
        heads, workers = self.pods(cluster, "head"), self.pods(cluster, "worker")
        if not heads:
            if holds(cluster, "RayClusterProvisioned") and cluster["metadata"]["annotations"][KEEP_LOST_HEAD] == "true":
                return
            self._make(cluster, "head", cluster["spec"]["headGroupSpec"])
        over = [pod for pod in (*heads, *workers) if phase(pod) in ("Failed", "Succeeded")]
        for pod in over:
            self._server.delete(pod)
        if len(heads) > 1 or over:
            return
        group = cluster["spec"]["workerGroupSpecs"][0]
        for _ in range(group["replicas"] - len(workers)):
            self._make(cluster, "worker", group)
        for pod in workers[group["replicas"] :]:
            self._server.delete(pod)

    def _make(self, cluster: Manifest, kind: str, group: Manifest) -> None:
        template, labels = group["template"], {CLUSTER: cluster["metadata"]["name"], TYPE: kind}
        spec = template["spec"] | ({} if kind == "head" else _waiting_for_gcs(template["spec"]))
        self._server.create(pod_of(cluster, f"{kind}-{next(self._numbers)}", {**template, "spec": spec}, labels))

    def _report(self, cluster: Manifest) -> None:
        pods, heads = self.pods(cluster), self.pods(cluster, "head")
        if len(heads) > 1:
            return
        all_ready = bool(pods) and all(phase(pod) == "Running" and is_ready(pod) for pod in pods)
        provisioned = holds(cluster, "RayClusterProvisioned") or all_ready
        says = {"HeadPodReady": any(map(is_ready, heads)), "RayClusterProvisioned": provisioned}
        status = {
            "observedGeneration": cluster["metadata"]["generation"],
            "desiredWorkerReplicas": cluster["spec"]["workerGroupSpecs"][0]["replicas"],
            "readyWorkerReplicas": sum(map(is_ready, self.pods(cluster, "worker"))),
            "conditions": [_condition(cluster, kind, str(said)) for kind, said in says.items()],
        }
        before = cluster.get("status", {})
        if {**before, **status} != before | {"observedGeneration": status["observedGeneration"]}:  # it alone is no news
            self._server.patch(RAY_CLUSTER, Key.of(cluster), {"status": status}, "status")


def _waiting_for_gcs(spec: Manifest) -> Manifest:
    """What KubeRay adds to workers: of their own image. Here it never has to wait long."""
    return {"initContainers": [{"name": "wait-gcs-ready", "image": spec["containers"][0]["image"]}]}


def _condition(cluster: Manifest, kind: str, said: str) -> Manifest:
    """Since when it says so stays."""
    told = cluster.get("status", {}).get("conditions", ())
    before = next((each for each in told if each["type"] == kind and each["status"] == said), None)
    return before or {"type": kind, "status": said, "reason": "x", "lastTransitionTime": stamp(now())}


def holds(cluster: Manifest, kind: str) -> bool:
    conditions = cluster.get("status", {}).get("conditions", ())
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)
