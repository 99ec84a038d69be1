"""How it is measured: all of it at one control plane, one after the other."""

import copy
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from kubernetes.client import ApiException, CustomObjectsApi

from bench.operator.figures import Compared, Creation, Full, Life
from bench.operator.site import NAMESPACE, OPERATOR, PATIENCE_SECONDS, Call, Site, spent, wait
from rljob_operator.main import RESYNC_SECONDS
from tests.rljob_operator.played_driver import train
from tests.rljob_operator.played_head import PlayedHeads
from tests.rljob_operator.snapshots import SPEC

RLJOBS = {"group": "rljob.dev", "version": "v1alpha1", "namespace": NAMESPACE, "plural": "rljobs"}
RAY = {"group": "ray.io", "version": "v1", "namespace": NAMESPACE}
RAYJOBS = {**RAY, "plural": "rayjobs"}

CLAIMS = "persistentvolumeclaims"

CHILDREN = frozenset({
    "configmaps", "secrets", "networkpolicies", "poddisruptionbudgets", CLAIMS, "rayclusters",
})  # fmt: skip
"""Of a job without reward models, before KubeRay makes anything."""

SHARED_CLAIM = "shared"
"""Of the full store. KWOK binds some volumes a second: those of 10,000 jobs would be news for ten minutes."""

DIGITS = 5

REST_SECONDS = 10.0


class Jobs:
    """Makes RLJobs and RayJobs. Names are PREFIX-00001."""

    def __init__(self, site: Site) -> None:
        self._site, self._client = site, site.plane.access.client()
        self._api: Any = CustomObjectsApi(self._client)

    def rljob(self, name: str, claim: str | None = None) -> None:
        """claim: an existing one for its checkpoints, instead of its own."""
        own = {} if claim is None else {"checkpoint": {"volume": {"existingClaim": claim}}}
        body = {
            "apiVersion": "rljob.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": name},
            "spec": {**SPEC, **own},
        }
        self._api.create_namespaced_custom_object(**RLJOBS, body=body)

    def rayjob(self, name: str, cluster: Mapping[str, Any]) -> None:
        spec = {"entrypoint": "true", "rayClusterSpec": cluster}
        body = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": name}, "spec": spec}
        self._api.create_namespaced_custom_object(**RAYJOBS, body=body)

    def cluster_spec(self, name: str) -> dict[str, Any]:
        """What our operator asked of KubeRay for the job."""
        found: Any = self._api.get_namespaced_custom_object(**RAY, plural="rayclusters", name=name)
        return dict(found["spec"])

    def phase(self, name: str) -> str:
        found: Any = self._api.get_namespaced_custom_object(**RLJOBS, name=name)
        return str(found.get("status", {}).get("phase"))

    def clear(self) -> None:
        """Delete all, and wait until everything that was theirs is gone: what is done about it must not be counted as
        what comes next.
        """
        for collection in (RLJOBS, RAYJOBS):
            wait(f"the deletion of the {collection['plural']}", lambda c=collection: self._deleted(c))  # type: ignore[misc]
        for job in self._api.list_namespaced_custom_object(**RAYJOBS)["items"]:
            with suppress(ApiException):  # gone meanwhile
                # KubeRay keeps its finalizer for minutes where no head answers that the driver has stopped.
                name, patch = job["metadata"]["name"], {"metadata": {"finalizers": None}}
                self._api.patch_namespaced_custom_object(**RAYJOBS, name=name, body=patch)
        for collection in (RLJOBS, RAYJOBS, {**RAY, "plural": "rayclusters"}):
            wait(f"the end of the {collection['plural']}", lambda c=collection: not self._left(c))  # type: ignore[misc]
        kubectl = self._site.plane.access.kubectl
        wait("the end of the pods", lambda: not kubectl("get", "pods", f"--namespace={NAMESPACE}", "--output=name"))
        wait("the garbage collector to be through", lambda: _at_rest(self._site))

    def _deleted(self, collection: Mapping[str, str]) -> bool:
        """The API server gives up after a minute, with some of them deleted."""
        try:
            self._api.delete_collection_namespaced_custom_object(**collection)
        except ApiException as error:
            if error.status != HTTPStatus.GATEWAY_TIMEOUT:
                raise
            return False
        return True

    def _left(self, collection: Mapping[str, str]) -> bool:
        found: Any = self._api.list_namespaced_custom_object(**collection, limit=1)
        return bool(found["items"])


def for_rayjobs(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a RayJob: without what KubeRay refuses there, and without our labels, for whose pods our operator
    watches.
    """
    made = copy.deepcopy({key: value for key, value in spec.items() if key != "upgradeStrategy"})
    for group in (made["headGroupSpec"], *made["workerGroupSpecs"]):
        group["template"]["metadata"]["labels"] = {}
    return made


def _at_rest(site: Site) -> bool:
    """Nothing is written for a while but Leases."""
    site.calls()
    time.sleep(REST_SECONDS)
    return not any(call.writes and call.resource != "leases" for call in site.calls())


def numbered(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number:0{DIGITS}}" for number in range(count)]


def creation(site: Site, jobs: Jobs, count: int, rate: float, prefix: str) -> Creation:
    """Create so many, `rate` of them a second, and wait until each has all its children."""
    names, before, begin = numbered(prefix, count), site.cpu(), time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        sent = []
        for number, name in enumerate(names):
            time.sleep(max(0.0, begin + number / rate - time.monotonic()))
            sent.append(pool.submit(jobs.rljob, name))
        for each in sent:
            each.result()
    seconds = time.monotonic() - begin
    calls = _until_complete(site, names)
    wall = time.monotonic() - begin
    ours = Counter((call.verb, call.resource, call.code) for call in calls if call.user == OPERATOR)
    return Creation(count, rate, seconds, _latencies(calls, names), ours, spent(before, site.cpu()), wall)


def _until_complete(site: Site, names: Sequence[str], children: Set[str] = CHILDREN) -> list[Call]:
    calls: list[Call] = []
    missing = {(name, child) for name in names for child in children}

    def complete() -> bool:
        new = site.calls()
        calls.extend(new)
        missing.difference_update((_job(call.name), call.resource) for call in new if _makes(call))
        return not missing

    wait("the children of all jobs", complete, patience=PATIENCE_SECONDS + len(names))
    return calls


def _makes(call: Call) -> bool:
    return call.resource in CHILDREN and call.code == HTTPStatus.CREATED


def _job(child: str) -> str:
    """PREFIX-00001 of PREFIX-00001-checkpoints."""
    return "-".join(child.split("-")[:2])


def _latencies(calls: Iterable[Call], names: Sequence[str]) -> list[float]:
    begun: dict[str, float] = {}
    made: dict[str, float] = defaultdict(float)
    for call in calls:
        if call.resource == "rljobs" and call.verb == "create":
            begun[call.name] = call.received
        elif _makes(call):
            made[_job(call.name)] = max(made[_job(call.name)], call.answered)
    return [made[name] - begun[name] for name in names]


def full(site: Site, jobs: Jobs, count: int, there: int, empty: int) -> Full:
    """Add jobs up to `count`, let the operator rest, then start another and see how long it takes to know them all.

    The added ones share a claim. there: how many exist. empty: bytes of an operator without jobs.
    """
    begin = time.monotonic()
    names = numbered("full", count - there)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: jobs.rljob(name, SHARED_CLAIM), names))
    _until_complete(site, names, CHILDREN - {CLAIMS})
    wait("the operator to come to rest", lambda: _quiet(site), patience=PATIENCE_SECONDS + count)
    filled = time.monotonic() - begin
    before, begin = site.cpu(), time.monotonic()
    time.sleep(RESYNC_SECONDS)
    rest, rest_seconds = spent(before, site.cpu()), time.monotonic() - begin
    site.end_operator()
    site.calls()
    before, begin = site.cpu(), time.monotonic()
    site.start_operator()
    wait("the operator to decide on all", lambda: _all_decided(site, count), 0.1)
    start = time.monotonic() - begin
    start_cpu, reconciles = spent(before, site.cpu()), int(_reconciles(site))
    writes = sum(call.writes and call.user == OPERATOR and call.resource != "leases" for call in site.calls())
    return Full(count, filled, start, reconciles, writes, (empty, site.memory()), start_cpu, rest_seconds, rest)


def _reconciles(site: Site) -> float:
    return site.metric("rljob_operator_reconcile_seconds_count")


def _all_decided(site: Site, count: int) -> bool:
    """It has looked at least so often, and no key waits for its turn; some may be looked at just now."""
    return _reconciles(site) >= count and site.metric("rljob_operator_queue_depth") == 0


def _quiet(site: Site) -> bool:
    """No reconcile within five seconds."""
    before = _reconciles(site)
    time.sleep(5)
    return _reconciles(site) == before > 0


def life(site: Site, jobs: Jobs, heads: PlayedHeads, count: int, steps: int, every: int) -> Life:
    """Jobs whose drivers are played, all at once."""
    site.calls()
    names = numbered("life", count)
    for name in names:
        heads.add(NAMESPACE, name, script=train(steps, seconds=1.0, every=every))
        jobs.rljob(name)
    wait("the jobs to succeed", lambda: all(jobs.phase(name) == "Succeeded" for name in names))
    calls = Counter((call.verb, call.resource) for call in site.calls() if call.user == OPERATOR and _of_jobs(call))
    return Life(count, steps, every, {what: number / count for what, number in calls.most_common()})


def _of_jobs(call: Call) -> bool:
    return call.resource != "leases" and call.verb not in {"list", "watch"}


def compared(site: Site, jobs: Jobs, count: int) -> tuple[Compared, Compared]:
    """RLJobs, then RayJobs that ask for the same clusters; KubeRay runs."""
    jobs.rljob("model-00000")
    wait("a RayCluster", lambda: _exists(jobs, "model-00000"))
    spec = for_rayjobs(jobs.cluster_spec("model-00000"))
    pods = 1 + sum(group["replicas"] for group in spec["workerGroupSpecs"])
    jobs.clear()
    found = []
    for kind in ("RLJob", "RayJob"):
        names = numbered(kind.lower(), count)
        site.calls()
        before = site.cpu()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(jobs.rljob if kind == "RLJob" else lambda name: jobs.rayjob(name, spec), names))
        calls = _until_pods(site, names, pods)
        cpu = spent(before, site.cpu())
        found.append(_compared(kind, calls, names, pods, cpu))
        jobs.clear()
    return found[0], found[1]


def _exists(jobs: Jobs, name: str) -> bool:
    try:
        return bool(jobs.cluster_spec(name))
    except ApiException:
        return False


def _until_pods(site: Site, names: Sequence[str], pods: int) -> list[Call]:
    calls: list[Call] = []

    def complete() -> bool:
        calls.extend(site.calls())
        return sum(_makes_pod(call) for call in calls) >= pods * len(names)

    wait("the pods of all jobs", complete)
    return calls


def _makes_pod(call: Call) -> bool:
    return (call.user, call.resource, call.code) == ("kuberay-operator", "pods", HTTPStatus.CREATED)


def _compared(kind: str, calls: Sequence[Call], names: Sequence[str], pods: int, cpu: Mapping[str, float]) -> Compared:
    """pods: of each job's cluster. All times are the API server's."""
    begun = {
        call.name: call.received for call in calls if call.verb == "create" and call.resource == f"{kind.lower()}s"
    }
    clusters: dict[str, float] = {}
    made: dict[str, list[float]] = defaultdict(list)
    for call in calls:
        if call.resource == "rayclusters" and call.code == HTTPStatus.CREATED:
            clusters.setdefault(_job(call.name), call.answered)
        elif _makes_pod(call):
            made[_job(call.name)].append(call.answered)
    by = Counter(call.user for call in calls)
    return Compared(
        kind, len(names),
        [clusters[name] - begun[name] for name in names if name in clusters],
        [max(made[name]) - begun[name] for name in names if len(made[name]) == pods],
        {who: number / len(names) for who, number in by.most_common()},
        {who: seconds / len(names) for who, seconds in cpu.items()},
    )  # fmt: skip
