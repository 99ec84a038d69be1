"""The state of the last attempt's driver, derived once from the status, Ray, the agent and the RayCluster."""

from dataclasses import dataclass
from enum import Enum, auto

from rljob_api import parse_duration
from rljob_api.conditions import Reason
from rljob_api.contract import REASONS, ExitCode, ExitRecord, last_words
from rljob_api.v1alpha1 import DriverStatus
from rljob_operator.head.ray_jobs import RayJobState
from rljob_operator.head.report import HeadReport
from rljob_operator.observe.cluster import Cluster
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.plan import MESSAGE

HEARTBEAT_SECONDS = 5.0
"""How often a driver gives a sign of life."""

UNHEARD_SECONDS = 600.0
"""How long a driver may give no sign of life at all: it imports on a cold machine, or a network is cut."""

RECORD_SECONDS = 60.0
"""How long an agent may not answer for the record of a driver that has ended, for example if its volume is slow."""


class DriverState(Enum):
    NONE = auto()  # no attempt has begun, or the last one is over
    LOST = auto()  # its RayCluster or Ray's head is gone, or Ray has forgotten it
    ENDED = auto()  # `record` says how
    UNREAD = auto()  # ended; the agent does not answer for its record
    OUT_OF_REACH = auto()  # unheard for so long that its RayCluster counts as lost
    HUNG = auto()  # silent for too long, and Ray's head answers: it is to be ended
    RESERVED = auto()  # not submitted, and the agent confirms that it has not begun
    UNCONFIRMED = auto()  # not submitted, and the agent does not say whether it has begun
    UNANSWERED = auto()  # Ray's head does not answer
    SILENT = auto()  # no sign of life for longer than recovery.hangAfter
    PENDING = auto()  # Ray has not started it
    RUNNING = auto()


@dataclass(frozen=True, slots=True)
class Driver:
    """record: how it ended; None while it may live and while its record may yet be read.

    lost: why it is LOST.
    heard: it gave a sign of life recently.
    over: it runs no more, or has recorded its end; False for a driver whose head pod is leaving.
    lingers: the submission to end, of a driver that recorded its end and whose process still holds the GPUs.
    """

    state: DriverState
    status: DriverStatus | None = None
    record: ExitRecord | None = None
    lost: str | None = None
    heard: bool = False
    over: bool = False
    lingers: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether an attempt has begun whose end the status does not say."""
        return self.state is not DriverState.NONE


def derive_driver(snapshot: Snapshot, cluster: Cluster) -> Driver:
    status, head = snapshot.job.status.driver, snapshot.head
    if status is None or status.state == "Ended":
        return Driver(DriverState.NONE, status)
    lost, record = _lost(snapshot, status, cluster), _record(snapshot)
    runs = head is not None and head.driver is not None and not head.driver.state.is_final
    return Driver(
        _state(snapshot, status, cluster, lost, record),
        status,
        record,
        lost,
        heard=head is not None and head.heartbeat is not None and not _is_silent(snapshot),
        over=_is_over(snapshot, cluster),
        lingers=status.submission_id if runs else None,
    )


def _state(
    snapshot: Snapshot, status: DriverStatus, cluster: Cluster, lost: str | None, record: ExitRecord | None
) -> DriverState:
    if lost is not None:
        return DriverState.LOST
    if record is not None:
        return DriverState.ENDED
    if _is_unread(snapshot):
        return DriverState.UNREAD
    if (hung := _hung(snapshot, cluster)) is not None:
        return hung
    return _waiting(snapshot, status) if snapshot.head is not None else _unanswered(snapshot, status)


def _waiting(snapshot: Snapshot, status: DriverStatus) -> DriverState:
    """The head answers."""
    head = snapshot.head
    assert head is not None
    if head.driver is None and status.state == "Reserved":
        return DriverState.RESERVED if head.agent else DriverState.UNCONFIRMED
    if _is_silent(snapshot):
        return DriverState.SILENT
    if head.driver is not None and head.driver.state is RayJobState.PENDING and head.heartbeat is None:
        return DriverState.PENDING
    return DriverState.RUNNING


def _unanswered(snapshot: Snapshot, status: DriverStatus) -> DriverState:
    """The head does not answer, which for a moment does not count against a driver that ran."""
    ran = snapshot.job.status.phase == "Running" and status.state != "Reserved"
    passing = ran and not snapshot.unauthorized and not _is_silent(snapshot)
    return DriverState.RUNNING if passing else DriverState.UNANSWERED


def _lost(snapshot: Snapshot, status: DriverStatus, cluster: Cluster) -> str | None:
    head = snapshot.head
    if not cluster.exists:
        return "the RayCluster is gone"
    if not cluster.of_attempt:
        return "the RayCluster was replaced"
    if cluster.head_lost is not None:
        return f"Ray's head: {cluster.head_lost}"
    if head is not None and head.driver is None and (status.state == "Submitted" or head.begun):
        return "Ray does not know the driver: its head was restarted"
    return None


def _hung(snapshot: Snapshot, cluster: Cluster) -> DriverState | None:
    """A head that only the operator does not reach, while its node finds the pod ready, counts for nothing: a network
    is cut or a policy is wrong, and a restart would end every job that trains behind that network.
    """
    head = snapshot.head
    if not _is_silent(snapshot):
        return None
    beats = head is not None and head.heartbeat is not None
    if not beats and snapshot.silent <= UNHEARD_SECONDS:
        return None
    out_of_reach = head is None or (not beats and not head.agent)
    if out_of_reach and cluster.head_ready:
        return None
    return DriverState.OUT_OF_REACH if head is None or _is_deaf(snapshot) else DriverState.HUNG


def _is_silent(snapshot: Snapshot) -> bool:
    return snapshot.silent > _allowed(snapshot)


def _is_deaf(snapshot: Snapshot) -> bool:
    """Whether Ray should have ended a silent driver long ago, and has not."""
    return snapshot.silent > _allowed(snapshot) + UNHEARD_SECONDS


def _allowed(snapshot: Snapshot) -> float:
    """Seconds of silence; unlimited if the spec cannot be read."""
    spec = snapshot.job.read
    return float("inf") if spec is None else parse_duration(spec.recovery.hang_after) + HEARTBEAT_SECONDS


def _is_over(snapshot: Snapshot, cluster: Cluster) -> bool:
    head = snapshot.head
    if head is not None and (head.driver is None or head.driver.state.is_final):
        return True
    if head is not None and head.exit is not None and _is_silent(snapshot):  # its process hangs
        return True
    return cluster.head_lost is not None and not cluster.head_leaves


def _record(snapshot: Snapshot) -> ExitRecord | None:
    """Its own record, which the volume keeps after Ray has forgotten the driver; or what Ray knows if it left none.

    A driver that is silent after its record counts as ended, although its process may still be there.
    """
    head = snapshot.head
    if head is None or head.driver is None:
        return None if head is None else head.exit
    if not head.driver.state.is_final:
        return head.exit if _is_silent(snapshot) and not _is_deaf(snapshot) else None
    return None if _is_unread(snapshot) else head.exit or _record_of_ray(head)


def _is_unread(snapshot: Snapshot) -> bool:
    """Whether a driver that failed may have left a record that was not readable yet."""
    head = snapshot.head
    if head is None or head.driver is None or head.agent:
        return False
    done = head.driver.state is RayJobState.SUCCEEDED
    return head.driver.state.is_final and not done and snapshot.silent <= RECORD_SECONDS


def _record_of_ray(head: HeadReport) -> ExitRecord:
    """What Ray knows of a driver that left no record. If Ray could not start it, that is no failure of the driver."""
    driver = head.driver
    assert driver is not None
    if driver.state is RayJobState.SUCCEEDED:
        return ExitRecord(code=ExitCode.DONE, reason=Reason.COMPLETED, message="The driver exited with code 0")
    code = ExitCode.INFRASTRUCTURE if driver.driver_exit_code is None else driver.driver_exit_code
    lines = driver.message.strip().splitlines()
    words = last_words(lines[-1]) if code in REASONS and lines else driver.message or driver.state
    message = f"the driver left no exit record: {words}"[:MESSAGE]
    return ExitRecord(code=code, reason=REASONS.get(code, Reason.DRIVER_LOST), message=message)
