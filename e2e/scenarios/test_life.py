"""A job's life on real nodes: it trains, pauses, and survives the loss of its processes and pods."""

import json

import pytest

from e2e.scenarios.job import Job

KILL_DRIVER = """
import psutil
for process in psutil.process_iter(["cmdline"]):
    if {"driver", "--attempt"} <= set(process.info["cmdline"] or ()):
        process.kill()
"""

pytestmark = pytest.mark.timeout(1200)


def test_a_job_trains_to_its_end_and_shows_its_reward(job: Job) -> None:
    job.apply()
    status = job.reaches("Succeeded")

    assert status["progress"]["step"] == status["progress"]["totalSteps"] == 22
    assert status["restarts"] == 0
    assert status["checkpoint"]["step"] == 22
    columns = job.kubectl("get", "rlj", job.name, "--no-headers").split()
    assert columns[:2] == [job.name, "Succeeded"]
    assert f"{status['progress']['reward']}" in columns
    claim = json.loads(job.kubectl("get", "pvc", f"{job.name}-checkpoints", "--output=json"))
    assert claim["status"]["phase"] == "Bound"


def test_a_suspended_job_has_no_pods_and_goes_on_where_it_was(job: Job) -> None:
    job.apply()
    job.eventually(lambda: job.step >= 12, "RL step")
    job.patch(suspend=True)
    suspended = job.reaches("Suspended")
    assert job.pods() == []
    assert suspended["checkpoint"]["step"] >= 12

    job.patch(suspend=False)
    status = job.reaches("Succeeded")
    assert (status["restarts"], status["attempt"]) == (0, 2)
    assert status["progress"]["step"] == 22


def test_a_killed_driver_is_started_again_on_the_living_cluster(job: Job) -> None:
    job.apply()
    job.eventually(lambda: job.step >= 12, "RL step")
    before = sorted(job.pods())
    job.run_in("head", "python", "-c", KILL_DRIVER)
    job.eventually(lambda: (job.status["attempt"], job.phase) == (2, "Running"), "second attempt")
    assert sorted(job.pods()) == before

    status = job.reaches("Succeeded")
    assert (status["restarts"], status["attempt"]) == (1, 2)


def test_a_lost_worker_pod_is_replaced(job: Job) -> None:
    job.apply()
    job.eventually(lambda: job.step >= 12, "RL step")
    (lost,) = job.pods("worker")
    job.kubectl("delete", lost, "--force", "--grace-period=0")
    status = job.reaches("Succeeded")

    assert status["attempt"] > 1
    assert status["progress"]["step"] == 22
