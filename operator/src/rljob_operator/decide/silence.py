"""Drivers of which no sign of life is heard."""

from rljob_api import parse_duration
from rljob_operator.observe.snapshot import Snapshot

HEARTBEAT_SECONDS = 5.0
"""How often a driver gives a sign of life."""

UNHEARD_SECONDS = 600.0
"""How long nobody may hear of a driver at all. It imports, on a machine that may be cold; a network may be cut."""


def is_silent(snapshot: Snapshot) -> bool:
    """Whether nobody has told a sign of life of the driver for longer than a sound one takes."""
    return snapshot.silent > _allowed(snapshot)


def _allowed(snapshot: Snapshot) -> float:
    return parse_duration(snapshot.job.spec.recovery.hang_after) + HEARTBEAT_SECONDS


def lingering(snapshot: Snapshot) -> str | None:
    """The submission of a driver that has recorded its end, and whose process does not end: it holds the GPUs."""
    driver, head = snapshot.job.status.driver, snapshot.head
    lingers = head is not None and head.driver is not None and not head.driver.state.is_final
    return driver.submission_id if lingers and driver is not None else None


def is_deaf(snapshot: Snapshot) -> bool:
    """Whether Ray should have ended a silent driver long ago, and has not."""
    return snapshot.silent > _allowed(snapshot) + UNHEARD_SECONDS
