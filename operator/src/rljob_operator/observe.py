"""From what the watches have told, and what the head says, to a snapshot."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from rljob_operator import names
from rljob_operator.heads import Heads
from rljob_operator.job import Job, read_job
from rljob_operator.kube.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    NETWORK_POLICY,
    POD,
    RAY_CLUSTER,
    RLJOB,
    SERVICE,
    VOLUME_CLAIM,
    Key,
    Kind,
    Manifest,
    Ref,
)
from rljob_operator.snapshot import Heard, Snapshot, is_deleting, role_of
from rljob_operator.store import Store

CHILD_KINDS = (RAY_CLUSTER, DEPLOYMENT, SERVICE, CONFIG_MAP, VOLUME_CLAIM, NETWORK_POLICY, DISRUPTION_BUDGET)


def utc_now() -> datetime:
    """Whole seconds, as Kubernetes writes times."""
    return datetime.now(UTC).replace(microsecond=0)


async def observe(store: Store, heads: Heads, key: Key, clock: Callable[[], datetime] = utc_now) -> Snapshot | None:
    """None where there is no such job."""
    manifest = store.get(RLJOB, key)
    if manifest is None:
        return None
    job = read_job(manifest)
    children = {
        kind: {child["metadata"]["name"]: child for child in store.children(kind, key) if is_ours(kind, child, key)}
        for kind in CHILD_KINDS
    }
    pods = [pod for pod in store.children(POD, key) if role_of(pod) in names.ROLES]
    snapshot = Snapshot(job, clock(), children, pods)
    heard = await heads.report(job) if _has_driver(job) and _head_runs(snapshot) else Heard()
    return Snapshot(
        job, clock(), children, pods, heard.head, silent=heard.silent, unauthorized=heard.unauthorized
    )  # fmt: skip


def unseen(snapshot: Snapshot) -> Iterator[Ref]:
    """What nobody tells of, though its pods or the status do: it is gone, or has lost the label that we watch for."""
    job, claim = snapshot.job, names.claim(snapshot.job.name)
    if snapshot.cluster is None and snapshot.ray_pods:
        yield Ref(RAY_CLUSTER, job.namespace, names.ray_cluster(job.name))
    if (
        job.status.checkpoint is None
        or job.problem is not None
        or job.spec.checkpoint.volume.existing_claim is not None
    ):
        return
    if snapshot.child(VOLUME_CLAIM, claim) is None:
        yield Ref(VOLUME_CLAIM, job.namespace, claim)


def is_ours(kind: Kind, child: Manifest, job: Key) -> bool:
    """Others may carry the job's label too, as a user's own TensorBoard does, which the NetworkPolicy lets in then.

    Children of a deleted job of the same name are ours as well: they are waited for.
    """
    metadata = child["metadata"]
    owners = metadata.get("ownerReferences", ())
    if any(owner.get("controller") and (owner["kind"], owner["name"]) == (RLJOB.name, job.name) for owner in owners):
        return True
    ours = names.JOB_LABEL in metadata.get("labels", ()) or names.MAKER_ANNOTATION in metadata.get("annotations", ())
    return ours and kind == VOLUME_CLAIM and metadata["name"] == names.claim(job.name)


def _has_driver(job: Job) -> bool:
    return job.status.driver is not None and job.status.driver.state != "Ended"


def _head_runs(snapshot: Snapshot) -> bool:
    """Whether it is worth asking: a head of the cluster that the attempt is meant for."""
    driver = snapshot.job.status.driver
    heads = [pod for pod in snapshot.pods_of(names.HEAD) if pod.get("status", {}).get("phase") == "Running"]
    return (
        driver is not None and snapshot.cluster_uid == driver.cluster_uid and any(not is_deleting(pod) for pod in heads)
    )
