"""`kubectl rljob suspend` and `resume`: the user's own change of the spec, and the wait for what comes of it."""

from contextlib import closing
from datetime import UTC, datetime

import pytest

from rljob_api.contract import ExitRecord
from rljob_api.v1alpha1 import CheckpointStatus
from rljob_operator.head import RayJobState
from rljob_operator.kubectl.calls import Kubectl
from rljob_operator.kubectl.suspend import UNSEEN
from tests.e2e.waiting import eventually
from tests.rljob_operator.snapshots import PODS, SETTINGS, attempted, ray_cluster, reports

LIVING = {"cluster": ray_cluster(), "pods": PODS}
"""A snapshot's cluster."""


@pytest.fixture
def running(jobs):
    jobs.create()
    saved = CheckpointStatus(step=40, path="p", time=datetime.now(UTC).replace(microsecond=0))
    jobs.decide(**LIVING, head=reports(checkpoint=saved), **attempted("Submitted"))
    return jobs


@pytest.fixture
def suspended(running):
    running.change(suspend=True)
    running.decide()
    return running


def spec_says(jobs, value):
    return lambda: jobs.get()["spec"].get("suspend") is value


def test_the_change_is_the_users(shell, running):
    said = "job will save a checkpoint and give back its pods; --wait waits for that\n"
    assert shell.output("suspend", "job") == said
    assert running.get()["spec"]["suspend"] is True
    managers = {entry["manager"]: entry["fieldsV1"] for entry in running.get()["metadata"]["managedFields"]}
    assert managers["kubectl-rljob"] == {"f:spec": {"f:suspend": {}}}
    assert shell.output("suspend", "job") == said, "twice is as once"


def test_no_checkpoint_is_promised_without_a_driver_and_no_pods_where_there_are_none(shell, jobs):
    without = "has no pods, and gets none until it is resumed; --wait waits until the operator has seen it\n"
    jobs.create()
    assert shell.output("suspend", "job") == f"job {without}", "no operator has seen it"
    jobs.create("imageless")
    assert jobs.decide("imageless", SETTINGS.model_copy(update={"trainer_image": None})).phase == "Pending"
    assert shell.output("suspend", "imageless") == f"imageless {without}"
    jobs.create("early")
    assert jobs.decide("early", cluster=ray_cluster(ready=0), pods=PODS).phase == "Starting"
    assert shell.output("suspend", "early") == "early will give back its pods; --wait waits for that\n"


def test_who_waits_hears_what_happens_and_where_it_goes_on(shell, running):
    with shell.running("suspend", "job", "--wait") as waiting:
        eventually(spec_says(running, value=True))
        running.decide(**LIVING, head=reports())
        assert waiting.stderr.readline() == "Suspending: spec.suspend is true: the driver is asked for a checkpoint\n"
        running.decide()
        out, errors = waiting.communicate()
    assert (waiting.returncode, out, errors) == (0, "job is suspended; it goes on from step 40\n", "")
    assert shell.output("suspend", "job") == "job is suspended; it goes on from step 40\n"


def test_who_waits_for_an_operator_that_is_not_there_is_told(shell, running):
    with shell.running("suspend", "job", "--wait") as waiting:
        told = waiting.stderr.readline()
        waiting.kill()
    assert told == f"{UNSEEN}\n"


def test_resuming_waits_until_it_runs(shell, suspended):
    with shell.running("resume", "job", "--wait") as waiting:
        eventually(spec_says(suspended, value=False))
        suspended.decide()
        assert waiting.stderr.readline() == "Starting: 0 of 2 workers ready\n"
        suspended.decide(**LIVING)
        suspended.decide(**LIVING, head=reports())
        out, _ = waiting.communicate()
    assert (waiting.returncode, out) == (0, "job runs: attempt 2\n")


def test_resuming_says_where_it_goes_on(shell, suspended):
    assert shell.output("resume", "job") == "job starts; it goes on from step 40; --wait waits until it runs\n"


def test_resuming_what_was_never_suspended_says_so(shell, jobs):
    jobs.create()
    jobs.decide()
    assert shell.output("resume", "job") == "job was not suspended; it is Starting; --wait waits until it runs\n"
    jobs.decide(**LIVING, head=reports(), **attempted("Submitted"))
    assert shell.output("resume", "job") == "job runs: attempt 1\n"


def test_a_job_that_fails_or_is_deleted_meanwhile_ends_the_wait(shell, suspended):
    with shell.running("resume", "job", "--wait") as waiting:
        eventually(spec_says(suspended, value=False))
        suspended.decide(**LIVING)
        failed = reports(RayJobState.FAILED, exit=ExitRecord(code=65, reason="Data", message="no such file"))
        suspended.decide(**LIVING, head=failed)
        _, errors = waiting.communicate()
    assert waiting.returncode == 1
    last = errors.splitlines()[-1]
    assert last.startswith("error: job has failed meanwhile (Data): a restart would end the same way")
    assert shell.error("resume", "job") == "job has failed (Data), which is final; create another job"

    suspended.create("other")
    with shell.running("suspend", "other", "--wait") as waiting:
        eventually(lambda: suspended.get("other")["spec"].get("suspend"))
        suspended.delete("other")
        _, errors = waiting.communicate()
    assert (waiting.returncode, errors) == (1, "error: other was deleted meanwhile\n")


@pytest.mark.parametrize("command", ["suspend", "resume"])
def test_nothing_is_promised_of_a_job_that_is_being_deleted(shell, running, command):
    running.hold()
    running.delete()
    said = "job is being deleted, which is final; create another job once it is gone"
    assert shell.error(command, "job", "--wait") == said


def test_a_deletion_before_the_watch_begins_is_told(shell, running, cluster, monkeypatch):
    for name in {"PATH", "KUBECONFIG", "KUBECACHEDIR"} & shell.environment.keys():
        monkeypatch.setenv(name, shell.environment[name])
    seen = running.get()
    running.delete()
    with closing(Kubectl(running.namespace, cluster.context).watch_rljob(seen)) as changes:
        assert next(changes)[0] == "DELETED"
