"""What `kubectl rljob` makes of one RLJob's status, at a time of its own."""

from datetime import UTC, datetime, timedelta

import pytest

from rljob_operator.kubectl.describe import _phase
from rljob_operator.kubectl.jobs import Job

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def job(phase: str, **since: timedelta) -> Job:
    """since: of conditions that are true, by type."""
    conditions = [
        {"type": kind, "status": "True", "reason": "Because", "lastTransitionTime": (NOW - age).isoformat()}
        for kind, age in since.items()
    ]
    metadata = {"name": "job", "namespace": "here", "generation": 1}
    status = {"phase": phase, "observedGeneration": 1, "conditions": conditions}
    return Job({"metadata": metadata, "spec": {}, "status": status}, NOW)


@pytest.mark.parametrize(
    ("phase", "condition", "said"),
    [
        ("Running", "Running", "Running, for 5s"),
        ("Suspended", "Suspended", "Suspended, for 5s"),
        ("Succeeded", "Succeeded", "Succeeded, 5s ago"),
        ("Failed", "Failed", "Failed, 5s ago"),
    ],
)
def test_a_phase_that_a_condition_tells_of_has_that_condition_s_age(phase, condition, said):
    told = job(phase, **{condition: timedelta(seconds=5), "Ready": timedelta(hours=2)})
    assert dict(_phase(told))["Phase"] == said


def test_of_a_phase_on_the_way_only_the_time_of_the_whole_way_is_known():
    """Two hours Starting, then suspended: Reconciling has been true all the while."""
    told = job("Suspending", Reconciling=timedelta(hours=2, seconds=5))
    assert dict(_phase(told))["Phase"] == "Suspending; reconciling for 2h5s"


def test_a_phase_that_nothing_tells_the_age_of_has_none():
    stalled = job("Pending", Stalled=timedelta(hours=2))
    stalled.status["conditions"].append(
        {"type": "Reconciling", "status": "False", "reason": "Settled", "lastTransitionTime": NOW.isoformat()}
    )
    assert dict(_phase(stalled))["Phase"] == "Pending"
