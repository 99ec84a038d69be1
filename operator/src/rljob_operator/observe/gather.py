"""From what the watches have told, and what the head says, to a snapshot."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from rljob_operator import names
from rljob_operator.head.heads import Heads
from rljob_operator.head.report import Heard
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
from rljob_operator.observe.cluster import had_attempt, head_is_ready
from rljob_operator.observe.snapshot import Snapshot, is_deleting, role_of
from rljob_operator.runtime.store import Store

CHILD_KINDS = (RAY_CLUSTER, DEPLOYMENT, SERVICE, CONFIG_MAP, VOLUME_CLAIM, NETWORK_POLICY, DISRUPTION_BUDGET)


def utc_now() -> datetime:
    """Whole seconds, as Kubernetes writes times."""
    return datetime.now(UTC).replace(microsecond=0)


async def observe(
    store: Store, heads: Heads, key: Key, clock: Callable[[], datetime] = utc_now, strays: Sequence[Manifest] = ()
) -> Snapshot | None:  # fmt: skip
    """None where there is no such job. strays: what no watch tells of, and was found otherwise."""
    manifest = store.get(RLJOB, key)
    if manifest is None:
        return None
    job = read_job(manifest)

    def known(kind: Kind) -> Iterator[tuple[str, Manifest]]:
        of_kind = [each for each in strays if each["kind"] == kind.name]
        return ((each["metadata"]["name"], each) for each in (*of_kind, *store.children(kind, key)))

    children = {kind: {name: each for name, each in known(kind) if is_ours(kind, each, key)} for kind in CHILD_KINDS}
    pods = [pod for pod in dict(known(POD)).values() if role_of(pod) in names.ROLES]
    snapshot = Snapshot(job, clock(), children, pods)
    heard = await heads.report(job) if _has_driver(job) and _head_runs(snapshot) else Heard()
    return Snapshot(
        job, clock(), children, pods, heard.head, silent=heard.silent, unauthorized=heard.unauthorized, strays=strays
    )  # fmt: skip


def unseen(snapshot: Snapshot) -> Iterator[Ref]:
    """What nobody tells of, though its pods or the status do: it is gone, or has lost the label that we watch for."""
    job, claim = snapshot.job, names.claim(snapshot.job.name)
    believed = job.status.cluster.uid if job.status.cluster is not None else ""
    if snapshot.cluster is None and (believed or snapshot.ray_pods):
        yield Ref(RAY_CLUSTER, job.namespace, names.ray_cluster(job.name), believed)
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
    """Whether it is worth asking: a head of the cluster that the attempt is meant for. Where there is no pod of one and
    KubeRay does not say so, that it does not answer is what there is to know.
    """
    if not had_attempt(snapshot):
        return False
    heads = snapshot.pods_of(names.HEAD)
    runs = [pod for pod in heads if pod.get("status", {}).get("phase") == "Running" and not is_deleting(pod)]
    return bool(runs) or (not heads and head_is_ready(snapshot))
