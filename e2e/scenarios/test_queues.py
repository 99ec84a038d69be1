"""Jobs in a queue of Kueue: one waits for the quota of another, and one takes it from another that trains.

Kueue is installed beside an operator that runs already, and removed afterwards. Its queue is that of examples/kueue,
which has quota for one job.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from e2e.chaos.weights import differing
from e2e.cluster.access import Access
from e2e.cluster.helm import Helm
from e2e.cluster.layout import Layout
from e2e.cluster.plane import Plane
from e2e.nodes import release
from e2e.scenarios.audit import KUEUE, OPERATOR, Audit
from e2e.scenarios.conftest import Measured, own_cluster_only
from e2e.scenarios.job import SFT_STEPS, Job
from rljob_api.conditions import Aspect, Reason
from rljob_operator.names import PRIORITY_LABEL, QUEUE_LABEL
from rljob_trainer.progress.history import Line, read_metrics
from rljob_trainer.progress.names import TIME_STEP

pytestmark = [pytest.mark.timeout(2400), own_cluster_only("installs Kueue and removes it again")]

QUEUES = Path(__file__).parents[2] / "examples/kueue/queues.yaml"

TRAINED: dict[str, Any] = {
    "model": {"fromScratch": {"layers": 2, "hiddenSize": 64, "heads": 2}},
    "data": {"promptsPerStep": 8},
    "rollout": {"deterministic": True, "samplesPerPrompt": 8},
    "actor": {"miniBatchSize": 4},
    "training": {"steps": 100, "validateEvery": 0},
    "checkpoint": {"everySteps": 1000},
}
"""A job whose weights depend on nothing but its spec. While it trains, only an eviction makes it save a checkpoint."""


REPEATABLE = ("step", "stage", "reward/", "response/", "prompt/", "actor/")
"""What names of such metrics begin with."""


@pytest.fixture
def allowed(cluster: Access, helm: Helm) -> Iterator[None]:
    """Meanwhile the operator may use Kueue, whether that is installed or not."""
    release.install(cluster, helm.home, kueue={"enabled": True})
    yield
    release.install(cluster, helm.home)


@contextmanager
def kueue(layout: Layout, job: Job) -> Iterator[None]:
    """With the example's queue in the namespace of the job."""
    plane = Plane(layout.folder)
    plane.add_kueue()
    try:
        job.kubectl("apply", f"--filename={QUEUES}")
        yield
    finally:
        job.kubectl("delete", "rljobs", "--all", "--timeout=300s")
        job.kubectl("delete", f"--filename={QUEUES}", "--timeout=120s")
        plane.remove_kueue()


def in_queue(job: Job, name: str, priority: str) -> Job:
    return replace(job, name=name, labels={QUEUE_LABEL: "training", PRIORITY_LABEL: priority})


@pytest.mark.usefixtures("allowed")
def test_a_job_waits_for_the_quota_of_another(layout: Layout, job: Job, measured: Measured) -> None:
    first, second = in_queue(job, "first", "experiment"), in_queue(job, "second", "experiment")
    first.apply()
    first.eventually(lambda: ready(first)["reason"] == Reason.KUEUE_MISSING, "word of the missing Kueue")
    assert not first.pods()
    with kueue(layout, job):
        seconds = discovery_by(first, layout)
        first.trains()
        second.apply()
        second.eventually(lambda: "insufficient unused quota" in ready(second)["message"], "word of the queue")
        assert ready(second)["message"].startswith("LocalQueue training: ")
        assert (second.phase, second.pods(), second.holds("Admitted")) == ("Queued", [], False)
        first.succeeds()
        second.trains()
        measured(seconds | start_of(second, after=first, layout=layout))
        status = second.succeeds()
        assert (status["restarts"], status["attempt"], status["workload"]["evictions"]) == (0, 1, 0)


@pytest.mark.usefixtures("allowed")
def test_a_job_of_higher_priority_takes_the_quota_of_one_that_trains(
    layout: Layout, job: Job, measured: Measured
) -> None:
    low, high = in_queue(job, "low", "experiment"), in_queue(job, "high", "urgent")
    with kueue(layout, job):
        low.apply(**TRAINED)
        low.eventually(lambda: low.step > SFT_STEPS + 10, "step in the middle of training")
        high.apply(**TRAINED)
        low.eventually(lambda: low.phase == "Queued", "eviction")
        assert low.pods() == []
        evicted, saved = low.conditions["Evicted"], low.saved
        assert (evicted["status"], evicted["reason"]) == ("True", Aspect.PREEMPTED)
        assert f"Preempted to accommodate RLJob {job.namespace}/high" in evicted["message"]
        assert "; 0 steps were lost" in evicted["message"]
        high.eventually(lambda: high.step, "first step")
        measured(eviction_of(low, layout) | start_of(high, after=low, layout=layout))
        high.succeeds()

        low.eventually(lambda: low.runs(attempt=2), "attempt 2")
        low.resumes(attempt=2, after=saved)
        status = low.succeeds_after(Aspect.PREEMPTED)
        assert (status["restarts"], status["attempt"], status["workload"]["evictions"]) == (0, 2, 1)
        taken = sorted(line["step"] for _, line in low.lines())
        assert taken == [*range(1, status["progress"]["totalSteps"] + 1)], "each step once, in whichever attempt"
        assert [*map(repeatable, lines(low))] == [*map(repeatable, lines(high))]
        assert differing(low.eventually(low.folder, "volume"), high.eventually(high.folder, "volume")) == []


def ready(job: Job) -> dict[str, str]:
    return job.conditions.get("Ready", {"reason": "", "message": ""})


def discovery_by(job: Job, layout: Layout) -> dict[str, float]:
    """Of Kueue, by the operator, for one that waits."""
    crd = ("get", "crd", "workloads.kueue.x-k8s.io", "--output=jsonpath={.metadata.creationTimestamp}")
    installed = datetime.fromisoformat(job.kubectl(*crd)).timestamp()
    name = job.eventually(lambda: job.status.get("workload"), "name of its Workload")["name"]
    audit = Audit(layout.audit_log, job.namespace)
    created = min(job.eventually(lambda: audit.writes(OPERATOR, "workloads", name), "Workload"))
    return {"from the installation of Kueue's kinds to the Workload of a job that waits": created - installed}


def eviction_of(job: Job, layout: Layout) -> dict[str, float]:
    """Of one that has not come back yet."""
    audit = Audit(layout.audit_log, job.namespace)
    began = min(audit.writes(OPERATOR, "rayclusters", job.name))
    evicted = min(each for each in writes_of_workload(audit, KUEUE, job) if each > began)
    released = max(writes_of_workload(audit, OPERATOR, job))
    return {"from the eviction to the release of the quota": released - evicted}


def start_of(job: Job, *, after: Job, layout: Layout) -> dict[str, float]:
    """after: the job whose quota it got."""
    audit = Audit(layout.audit_log, job.namespace)
    began = min(audit.writes(OPERATOR, "rayclusters", job.name))
    released = max(each for each in writes_of_workload(audit, OPERATOR, after) if each < began)
    first_step = min(line["time"] for line in lines(job))
    return {
        "from the release of the quota to the RayCluster of the next job": began - released,
        "from the release of the quota to the first optimizer step of the next job": first_step - released,
    }


def writes_of_workload(audit: Audit, user: str, job: Job) -> list[float]:
    return audit.writes(user, "workloads/status", job.status["workload"]["name"])


def lines(job: Job) -> list[Line]:
    """Metrics of every step that counts."""
    return [line for line in read_metrics(job.eventually(job.folder, "bound volume")) if TIME_STEP in line]


def repeatable(line: Line) -> Line:
    """Of a step's metrics, what depends on nothing but the spec."""
    return {name: value for name, value in line.items() if name.startswith(REPEATABLE)}
