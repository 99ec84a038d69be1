"""From what the watches and the head reported to a Snapshot."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

from rljob_operator import names
from rljob_operator.head.heads import Heads
from rljob_operator.head.report import Heard
from rljob_operator.job import Job, read_job
from rljob_operator.kube.kinds import (
    CHILD_KINDS,
    CLUSTER_WIDE,
    DEPLOYMENT,
    POD,
    RAY_CLUSTER,
    RLJOB,
    VOLUME_CLAIM,
    WORKLOAD,
    Key,
    Kind,
    Manifest,
)
from rljob_operator.observe.cluster import HEAD_READY
from rljob_operator.observe.preemptor import preemptor_of
from rljob_operator.observe.snapshot import Snapshot, condition_is, controller_of, is_deleting, label, role_of
from rljob_operator.runtime.store import Store


def utc_now() -> datetime:
    """Whole seconds, as Kubernetes writes times."""
    return datetime.now(UTC).replace(microsecond=0)


async def observe(
    store: Store, heads: Heads, key: Key, clock: Callable[[], datetime] = utc_now, written: datetime | None = None
) -> Snapshot | None:  # fmt: skip
    """None if there is no such job. written: when this process last wrote its status."""
    manifest = store.get(RLJOB, key)
    if manifest is None:
        return None
    job = read_job(manifest)

    def ours(kind: Kind) -> Iterator[tuple[str, Manifest]]:
        for each in store.children(kind, key):
            if is_ours(kind, each, key) or is_prebuilt(kind, each, job):
                yield each["metadata"]["name"], each

    children = {kind: dict(ours(kind)) for kind in CHILD_KINDS}
    pods = [pod for pod in store.children(POD, key) if role_of(pod) in names.ROLES]
    cluster_wide = {kind: store.all(kind) for kind in CLUSTER_WIDE}
    missing = store.missing.there(key.namespace)
    seen = Snapshot(job, clock(), children, pods, cluster_wide=cluster_wide, missing=missing)
    seen = replace(seen, preemptor=preemptor_of(seen.workload, store))
    heard = await heads.report(job) if _head_runs(seen) else Heard()
    return replace(
        seen, now=clock(), head=heard.head, status_written=written, silent=heard.silent, unauthorized=heard.unauthorized
    )


def abandoned(store: Store, job: Key) -> list[Manifest]:
    """The Workloads of a job that has gone, for example because a person removed its finalizer. None while pods, or
    what creates them, are left: their quota is in use.
    """

    def ours(kind: Kind) -> list[Manifest]:
        return [each for each in store.children(kind, job) if is_ours(kind, each, job)]

    pods = any(role_of(pod) in names.ROLES for pod in store.children(POD, job))
    if job.namespace in store.unreadable or pods or ours(RAY_CLUSTER) or ours(DEPLOYMENT):
        return []
    return ours(WORKLOAD)


def is_ours(kind: Kind, child: Manifest, job: Key) -> bool:
    """A user may label objects like the job, for example a TensorBoard that the NetworkPolicy then admits.

    Children of a deleted job of the same name count too: the job waits until they are removed.
    """
    metadata = child["metadata"]
    if label(child, names.JOB_LABEL) != job.name:
        return False
    owners = metadata.get("ownerReferences", ())
    if any(owner.get("controller") and (owner["kind"], owner["name"]) == (RLJOB.name, job.name) for owner in owners):
        return True
    return kind == VOLUME_CLAIM and metadata["name"] == names.claim(job.name)


def is_prebuilt(kind: Kind, child: Manifest, job: Job) -> bool:
    """Whether it is the Workload that MultiKueue created for the job. It has no owner before the operator adopts it."""
    return kind == WORKLOAD and child["metadata"]["name"] == job.prebuilt and controller_of(child) is None


def _head_runs(snapshot: Snapshot) -> bool:
    """Whether to ask the head: the driver is not known to have ended, and its cluster has a head pod that runs.

    If there is no head pod and KubeRay does not report that, the missing answer is what there is to know.
    """
    driver = snapshot.job.status.driver
    if driver is None or driver.state == "Ended" or driver.cluster_uid != snapshot.cluster_uid:
        return False
    heads = snapshot.pods_of(names.HEAD)
    runs = [pod for pod in heads if pod.get("status", {}).get("phase") == "Running" and not is_deleting(pod)]
    return bool(runs) or (not heads and condition_is(snapshot.cluster or {}, HEAD_READY))
