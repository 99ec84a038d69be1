"""Facts: what a Snapshot means. Derived once after observe; gates read them and compute nothing again."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum, auto

from rljob_operator import names
from rljob_operator.job import Job
from rljob_operator.kube.kinds import VOLUME_CLAIM
from rljob_operator.observe.cluster import Cluster, derive_cluster
from rljob_operator.observe.driver import Driver, derive_driver
from rljob_operator.observe.servers import Servers, derive_servers
from rljob_operator.observe.snapshot import Snapshot, is_deleting
from rljob_operator.observe.workload import Workload, derive_workload, with_quota


class VolumeState(Enum):
    """The claim that the operator creates for the job."""

    NOT_OURS = auto()  # the job brings a claim, or its spec cannot be read
    ABSENT = auto()
    DELETING = auto()  # being deleted; it is removed once no pod mounts it
    PRESENT = auto()


@dataclass(frozen=True, slots=True)
class Facts:
    seen: Snapshot
    cluster: Cluster
    driver: Driver
    servers: Servers
    volume: VolumeState
    workload: Workload

    @property
    def job(self) -> Job:
        return self.seen.job

    @property
    def now(self) -> datetime:
        return self.seen.now

    @property
    def lives(self) -> bool:
        """Whether a driver may live on this RayCluster, as far as the status knows."""
        return self.driver.is_open and self.cluster.of_attempt

    @property
    def durable_step(self) -> int:
        """Step of the newest durable checkpoint; 0 if there is none."""
        reported = self.seen.head.checkpoint if self.seen.head is not None else None
        return max((each.step for each in (reported, self.job.status.checkpoint) if each is not None), default=0)


def derive(snapshot: Snapshot) -> Facts:
    """Everything that gates need to know about a snapshot."""
    workload = derive_workload(snapshot)
    snapshot = replace(snapshot, job=with_quota(snapshot.job, workload))
    cluster = derive_cluster(snapshot)
    return Facts(
        snapshot,
        cluster,
        derive_driver(snapshot, cluster),
        derive_servers(snapshot),
        _derive_volume(snapshot),
        workload,
    )


def _derive_volume(snapshot: Snapshot) -> VolumeState:
    spec = snapshot.job.read
    if spec is None or spec.checkpoint.volume.existing_claim is not None:
        return VolumeState.NOT_OURS
    claim = snapshot.child(VOLUME_CLAIM, names.claim(snapshot.job.name))
    if claim is None:
        return VolumeState.ABSENT
    return VolumeState.DELETING if is_deleting(claim) else VolumeState.PRESENT
