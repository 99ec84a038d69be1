"""What `kubectl rljob` makes of one RLJob's status, at a time of its own."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rljob_operator.kubectl.describe import _phase
from rljob_operator.kubectl.events import events_about
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


def job_with(name: str, model: str) -> Job:
    metadata = {"name": name, "uid": "1", "creationTimestamp": NOW.isoformat()}
    return Job({"metadata": metadata, "spec": {"rewards": {"models": [{"name": model}]}}}, NOW)


def event(kind: str, name: str) -> dict[str, Any]:
    metadata = {"creationTimestamp": NOW.isoformat(), "resourceVersion": "1"}
    return {"involvedObject": {"kind": kind, "name": name}, "metadata": metadata}


@pytest.mark.parametrize(
    ("kind", "name", "shown"),
    [
        ("RayCluster", "a", True),
        ("Pod", "a-head-x7k2p", True),
        ("Pod", "a-workers-worker-x7k2p", True),
        ("PersistentVolumeClaim", "a-checkpoints", True),
        ("Deployment", "a-rm-x", True),
        ("ReplicaSet", "a-rm-x-5d6f7c9b48", True),
        ("Pod", "a-rm-x-5d6f7c9b48-x7k2p", True),
        ("RayCluster", "a-rm-x", False),
        ("Pod", "a-rm-x-head-x7k2p", False),  # of the job a-rm-x, as all that follow
        ("Pod", "a-rm-x-workers-worker-x7k2p", False),
        ("Deployment", "a-rm-x-rm-y", False),
        ("ReplicaSet", "a-rm-x-rm-y-5d6f7c9b48", False),
        ("Pod", "a-rm-x-rm-y-5d6f7c9b48-x7k2p", False),
        ("PersistentVolumeClaim", "a-rm-x-checkpoints", False),
    ],
)
def test_events_are_of_the_job_s_own_children_whatever_another_job_is_called(kind, name, shown):
    assert bool(events_about(job_with("a", model="x"), [event(kind, name)])) is shown


def test_pods_of_a_long_name_are_known_though_the_api_server_cuts_it():
    long, model = "j" * 40, "m" * 19
    made = f"{long}-rm-{model}-5d6f7c9b48-"[:58] + "x7k2p"
    assert events_about(job_with(long, model), [event("Pod", made)])
