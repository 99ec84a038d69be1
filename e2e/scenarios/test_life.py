"""A job's life on real nodes: it trains, pauses, and survives the loss of its processes and pods."""

import json
import re
import time

import pytest

from e2e.scenarios.conftest import Report
from e2e.scenarios.job import LONG, LOST_WORKER, VALIDATED, Job

KILL_DRIVER = """
import psutil, time
for process in psutil.process_iter(["cmdline"]):
    if {"driver", "--attempt"} <= set(process.info["cmdline"] or ()):
        process.kill()
        print(time.time())
"""
"""It takes a second to get there, so the pod says when it was."""

pytestmark = pytest.mark.timeout(1200)


def test_a_job_trains_to_its_end_and_shows_its_reward(job: Job) -> None:
    job.apply()
    status = job.succeeds()

    assert (status["progress"]["totalSteps"], status["restarts"], status["attempt"]) == (22, 0, 1)
    assert {"AllPodsReady", "AttemptStarting", "DriverRunning", "CheckpointSaved"} <= set(job.events())
    columns = job.kubectl("get", "rlj", job.name, "--no-headers").split()
    assert columns[:4] == [job.name, "Succeeded", "22", f"{status['progress']['reward']}"]
    claim = json.loads(job.kubectl("get", "pvc", f"{job.name}-checkpoints", "--output=json"))
    assert claim["status"]["phase"] == "Bound"


def test_a_suspended_job_has_no_pods_and_goes_on_where_it_was(job: Job) -> None:
    job.apply(**LONG)
    job.trains()
    step = job.step
    job.patch(suspend=True)
    saved = job.reaches("Suspended")["checkpoint"]["step"]
    assert job.pods() == []
    assert saved >= step
    assert job.holds("Suspended")
    assert not job.holds("Running")
    assert not job.holds("Reconciling")

    job.patch(suspend=False)
    job.eventually(lambda: job.runs(attempt=2), "attempt 2")
    assert saved == job.last_step(attempt=1), "no step is done again"
    job.resumes(attempt=2, after=saved)
    job.trains(beyond=VALIDATED)
    assert re.search(r"^step \d+, .+: reward \d", job.rljob("samples"), re.MULTILINE)
    status = job.succeeds_after("Suspended")
    assert (status["restarts"], status["attempt"], status["progress"]["totalSteps"]) == (0, 2, 70)


def test_a_killed_driver_is_started_again_on_the_living_cluster(job: Job, report: Report) -> None:
    job.apply(**LONG)
    job.trains()
    before, step = sorted(job.pods()), job.step
    lost = float(job.run_in("head", "python", "-c", KILL_DRIVER))
    report(job.seconds_to_next_update(lost, attempt=2))
    assert sorted(job.pods()) == before
    job.takes_over(attempt=2, after=step)

    status = job.succeeds_after("DriverLost")
    assert (status["restarts"], status["attempt"]) == (1, 2)


def test_a_lost_worker_pod_is_replaced(job: Job, report: Report) -> None:
    job.apply(**LONG)
    job.trains()
    (head,), (worker,), saved = job.pods("head"), job.pods("worker"), job.saved
    lost = time.time()
    job.kubectl("delete", worker, "--force", "--grace-period=0")
    job.recovers()
    report(job.seconds_to_next_update(lost, attempt=2))
    assert job.pods("head") == [head]
    assert job.pods("worker") != [worker]
    job.resumes(attempt=2, after=saved)

    status = job.succeeds_after(*LOST_WORKER, "StoppedOnRequest")
    assert status["attempt"] == 2
    assert status["restarts"] <= 1, "free of charge where the driver heard of it in time"
