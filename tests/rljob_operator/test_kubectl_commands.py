"""`kubectl rljob describe`, `suspend` and `resume`, and what stops a command: one line that names the remedy."""

import os
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from rljob_api.conditions import Reason
from rljob_api.contract import ExitRecord
from rljob_api.v1alpha1 import CheckpointStatus, Progress, RecoveryStatus
from rljob_operator.head.ray_jobs import RayJobState
from rljob_operator.kubectl import app
from rljob_operator.kubectl.calls import NotFound, problem
from rljob_operator.kubectl.jobs import span
from tests.e2e.waiting import eventually
from tests.rljob_operator.snapshots import PODS, attempted, ray_cluster, reports

LIVING = {"cluster": ray_cluster(), "pods": PODS}
"""A snapshot's cluster."""


def facts(text: str) -> dict[str, str]:
    return {line[:12].strip(): line[12:] for line in text.splitlines() if line[0] != " "}


@pytest.fixture
def recovering(jobs):
    """After a second failure since the checkpoint of step 40; the next attempt waits ten minutes."""
    now = datetime.now(UTC).replace(microsecond=0)
    job = jobs.create(recovery={"backoff": {"initial": "10m", "max": "10m"}})
    head = reports(
        RayJobState.FAILED,
        progress=Progress(step=45, total_steps=100, percent=45, reward=0.5, validation_reward=0.25),
        checkpoint=CheckpointStatus(step=40, path="/checkpoints/step-40-a1", time=now - timedelta(minutes=5)),
        exit=ExitRecord(code=75, reason="RankLost", message="rank-3 died"),
    )
    history = RecoveryStatus(durable_step=40, charged=1, cures={"driver": 1})
    began = attempted("Submitted", restarts=1, recovery=history, start_time=now - timedelta(hours=1))
    jobs.decide(**LIVING, head=head, **began)
    return job


@pytest.fixture
def running(jobs):
    jobs.create()
    saved = CheckpointStatus(step=40, path="p", time=datetime.now(UTC).replace(microsecond=0))
    jobs.decide(**LIVING, head=reports(checkpoint=saved), **attempted("Submitted"))
    return jobs


def test_a_recovering_job_says_what_failed_what_is_done_and_what_it_costs(shell, recovering):
    text = shell.output("describe", "job")
    found = facts(text)
    assert found["Name"] == f"{shell.namespace}/job"
    assert found["Phase"] == "Recovering"
    assert found["Reason"].startswith("RankLost: ")
    assert f"{Reason.RANK_LOST.meaning} {Reason.RANK_LOST.remedy}" in text
    assert "the next attempt starts in " in found["Recovery"]
    assert found["Restarts"] == "2 in all; 2 of 5 since the checkpoint of step 40"
    assert found["Progress"] == "step 45/100 (45 %), reward 0.500, validation 0.250"
    assert found["Checkpoint"].startswith("step 40, 5m")
    assert found["Volume"] == "PersistentVolumeClaim job-checkpoints"


def test_a_new_checkpoint_resets_the_count_of_restarts(shell, recovering, jobs):
    saved = CheckpointStatus(step=50, path="p", time=datetime.now(UTC))
    jobs.decide(**LIVING, head=reports(checkpoint=saved), **attempted("Submitted"))
    assert facts(shell.output("describe", "job"))["Restarts"].endswith("; 0 of 5 since the checkpoint of step 50")


def test_a_job_that_no_operator_has_seen_or_not_in_its_newest_form_says_so(shell, jobs):
    jobs.create()
    found = facts(shell.output("describe", "job"))
    assert found["Phase"].startswith("none: no operator has seen it")
    assert (found["Progress"], found["Checkpoint"]) == ("none yet", "none yet")
    jobs.decide()
    jobs.change(suspend=True)
    assert "the operator has not seen the newest change of the spec yet" in shell.output("describe", "job")


def test_a_job_of_another_manager_says_so_and_no_command_waits_for_it(shell, jobs):
    jobs.create(managedBy="kueue.x-k8s.io/multikueue")
    found = facts(shell.output("describe", "job"))
    assert found["Manager"].startswith("kueue.x-k8s.io/multikueue")
    assert "Phase" not in found
    for command in ("suspend", "resume"):
        assert "kueue.x-k8s.io/multikueue manages the job" in shell.output(command, "job", "--wait")


def test_the_change_is_the_user_s(shell, running):
    said = "job: spec.suspend is true; the newest checkpoint is of step 40\n"
    assert shell.output("suspend", "job") == said
    managers = {entry["manager"]: entry["fieldsV1"] for entry in running.get()["metadata"]["managedFields"]}
    assert managers["kubectl-rljob"] == {"f:spec": {"f:suspend": {}}}
    assert shell.output("suspend", "rljob.rljob.dev/job") == said, "twice is as once, and as kubectl prints the name"


def test_a_wait_prints_what_happens_until_it_is_so(shell, running):
    with shell.running("suspend", "job", "--wait") as waiting:
        eventually(lambda: running.get()["spec"].get("suspend"))
        running.decide(**LIVING, head=reports())
        while not waiting.stdout.readline().startswith("Suspending: "):
            pass
        running.decide()
        out, errors = waiting.communicate()
    assert (waiting.returncode, errors) == (0, "")
    assert out.splitlines()[-1].startswith("Suspended: ")


def test_a_job_that_fails_or_is_deleted_meanwhile_ends_the_wait(shell, running):
    running.change(suspend=True)
    with shell.running("resume", "job", "--wait") as waiting:
        eventually(lambda: running.get()["spec"].get("suspend") is False)
        running.decide(**LIVING, head=reports(RayJobState.FAILED, exit=ExitRecord(code=65, reason="Data", message="x")))
        _, errors = waiting.communicate()
    assert (waiting.returncode, errors) == (1, "error: job has failed meanwhile (Data)\n")
    assert shell.error("resume", "job") == "job has failed (Data), which is final; create another job"

    running.create("other")
    with shell.running("suspend", "other", "--wait") as waiting:
        eventually(lambda: running.get("other")["spec"].get("suspend"))
        running.delete("other")
        _, errors = waiting.communicate()
    assert (waiting.returncode, errors) == (1, "error: other was deleted meanwhile\n")


@pytest.mark.parametrize("command", ["suspend", "resume"])
def test_nothing_is_promised_of_a_job_that_is_being_deleted(shell, running, command):
    running.hold()
    running.delete()
    assert "is being deleted, which is final" in shell.error(command, "job", "--wait")


@pytest.mark.parametrize("command", ["describe", "logs", "checkpoints", "suspend", "resume"])
def test_a_job_that_is_not_there(shell, command):
    assert "kubectl get rljobs --all-namespaces" in shell.error(command, "gsm8k")


@pytest.mark.parametrize("name", ["-A", "", "Gsm8k", "a/b", "pod/gsm8k", "a b", "--all"])
def test_what_is_no_name_never_reaches_kubectl(name):
    assert "is not a name of an RLJob" in str(CliRunner().invoke(app, ["describe", "--", name]).exception)


def test_no_kubectl(shell, tmp_path):
    alone = tmp_path / "kubectl-rljob"
    alone.symlink_to(shell.folder / "kubectl-rljob")
    environment = {**shell.environment, "PATH": os.devnull}
    failed = subprocess.run([alone, "describe", "job"], env=environment, capture_output=True, text=True, check=False)
    assert (failed.returncode, failed.stderr) == (1, "error: kubectl is not on the PATH; install it\n")


def test_kubectl_s_errors_are_quoted_on_one_line():
    found = problem('W1122 12:00:00.000 noise\nError from server (NotFound): rljobs.rljob.dev "a" not found\n')
    assert (type(found), "noise" in str(found)) == (NotFound, False)
    assert str(problem("error: You must be\nlogged in\n")) == "You must be logged in"
    assert str(problem("")) == "kubectl failed without a message"


def test_a_span_is_its_two_largest_units():
    assert [span(seconds) for seconds in (-5, 0, 12, 3900, 90_000)] == ["0s", "0s", "12s", "1h5m", "1d1h"]
