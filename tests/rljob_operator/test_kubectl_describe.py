"""`kubectl rljob describe` and `events`: the story of one job."""

import json
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
import yaml
from kubernetes.client import CoreV1Api, EventsV1Api

from rljob_api.conditions import Reason
from rljob_api.contract import ExitRecord
from rljob_api.v1alpha1 import CheckpointStatus, Progress, RecoveryStatus
from rljob_operator import names
from rljob_operator.head import RayJobState
from rljob_operator.kube.events import Event
from rljob_operator.kube.kinds import RLJOB, Ref
from tests.e2e.waiting import eventually
from tests.rljob_operator.kubectl_support import GONE_SECONDS, pod
from tests.rljob_operator.snapshots import PODS, attempted, ray_cluster, reports

HEAD, WORKERS = "job-head-abcde", ("job-workers-worker-abcde", "job-workers-worker-fghij")


def facts(text):
    """The labelled lines before the first table."""
    lines = [line for line in text.partition("\n\n")[0].splitlines() if line[0] != " "]
    return {line.split()[0]: line.partition(" ")[2].strip() for line in lines}


def section(text, title):
    """The lines of a table, its head first."""
    return text.partition(f"\n{title}\n")[2].partition("\n\n")[0].splitlines()


@pytest.fixture
def recovering(jobs):
    """After a second failure since the checkpoint of step 40; the next attempt waits ten minutes."""
    now = datetime.now(UTC).replace(microsecond=0)
    job = jobs.create(recovery={"backoff": {"initial": "10m", "max": "10m"}})
    head = reports(
        RayJobState.FAILED,
        progress=Progress(
            step=45, total_steps=100, percent=45, reward=0.5, validation_reward=0.25, response_tokens=312
        ),
        checkpoint=CheckpointStatus(
            step=40, path="/checkpoints/checkpoints/step-40-a1", time=now - timedelta(minutes=5)
        ),
        exit=ExitRecord(code=75, reason="RankLost", message="rank-3 died"),
    )
    history = RecoveryStatus(durable_step=40, charged=1, cures={"driver": 1})
    began = attempted("Submitted", restarts=1, recovery=history, start_time=now - timedelta(hours=1))
    jobs.decide(cluster=ray_cluster(), pods=PODS, head=head, **began)
    return job


@pytest.fixture
def pods(client, namespace):
    """A head, a worker, and a worker for whose GPUs there is no node."""
    core: Any = CoreV1Api(client)
    core.create_namespaced_pod(namespace, pod(HEAD, names.HEAD, names.HEAD_CONTAINER, names.AGENT_CONTAINER))
    for name, gpus in zip(WORKERS, (0, 1000), strict=True):
        core.create_namespaced_pod(namespace, pod(name, names.WORKER, names.WORKER_CONTAINER, gpus=gpus))
    core.create_namespaced_pod(namespace, pod("other-head-abcde", names.HEAD, names.HEAD_CONTAINER, job="other"))
    eventually(lambda: core.read_namespaced_pod(HEAD, namespace).status.phase == "Running")
    eventually(lambda: core.list_namespaced_event(namespace, field_selector="reason=FailedScheduling").items)
    return core


versions = count(1)


def post(client, job, reason, note, seconds=0, *, uid=None):
    """An event as the operator posts it, so many seconds from now."""
    when = datetime.now(UTC) + timedelta(seconds=seconds)
    about = Ref(RLJOB, job.namespace, job.name, uid or job.uid)
    version = f"{next(versions)}"
    manifest = Event(about, reason, note, "Reconcile", when, version, warning=reason == "RankLost").manifest()
    api: Any = EventsV1Api(client)
    api.create_namespaced_event(job.namespace, manifest)


def test_a_recovering_job_tells_what_failed_what_is_done_and_what_it_costs(shell, recovering, pods, client):
    post(client, recovering, "RankLost", "restarting the driver")
    post(client, recovering, "Completed", "of an earlier job of the name", uid="another")
    text = shell.output("describe", "job")
    told = facts(text)
    assert told["Name"] == f"{shell.namespace}/job"
    assert told["Phase"].startswith("Recovering; reconciling for ")
    assert told["Reason"].startswith(
        "RankLost: restarting the driver in 600 s, restart 2 of 5 since the checkpoint of step 40"
    )
    assert f"{Reason.RANK_LOST.meaning} {Reason.RANK_LOST.remedy}" in text
    assert told["Recovery"].startswith("the driver is restarted on the living cluster; the next attempt starts in ")
    assert told["Attempt"] == "1, whose driver has ended"
    assert told["Restarts"] == "2 in all; 2 of 5 since the checkpoint of step 40"
    assert told["Progress"] == "step 45/100 (45 %), reward 0.500, validation 0.250, 312 tokens a response"
    assert told["Checkpoint"].startswith("step 40, 5m")
    assert told["Volume"] == "PersistentVolumeClaim job-checkpoints"

    assert [line.split()[0] for line in section(text, "Conditions")[1:]][:2] == ["Ready", "ClusterReady"]
    head, worker, stuck = section(text, "Pods")[1:]
    assert head.split()[:4] == ["head", HEAD, "2/2", "0"]
    assert head.endswith("Running")
    assert worker.split()[:4] == ["worker", "0", WORKERS[0], "1/1"]
    assert stuck.split()[:4] == ["worker", "1", WORKERS[1], "0/1"]
    assert "Pending, not scheduled: 0/" in stuck
    assert {line.split()[2] for line in section(text, "Events")[1:]} == {"RankLost", "FailedScheduling"}


def test_events_of_the_job_and_its_children_come_in_one_order(shell, recovering, pods, client):
    for second, reason in enumerate(("Later", "Latest"), start=60):
        post(client, recovering, reason, "said", second)
    lines = shell.output("events", "job").splitlines()
    assert [line.split()[2] for line in lines][-2:] == ["Later", "Latest"]
    assert lines == sorted(lines, key=lambda line: line.split()[0])
    said = {tuple(line.split()[1:4]) for line in lines}
    assert ("Normal", "Scheduled", f"Pod/{HEAD}") in said
    assert ("Warning", "FailedScheduling", f"Pod/{WORKERS[1]}") in said
    assert not [line for line in lines if "other" in line]


def test_events_that_say_next_to_nothing_stop_neither_command(shell, jobs, client):
    job = jobs.create()
    core: Any = CoreV1Api(client)
    for name, about in (("nothing", {}), ("uid", {"kind": "RLJob", "uid": job.uid})):
        bare = {"metadata": {"name": name}, "involvedObject": {"namespace": job.namespace} | about}
        core.create_namespaced_event(job.namespace, bare)
    (told,) = shell.output("events", "job").splitlines()
    assert told.split()[1:] == ["-", "-", "RLJob/-"]
    (described,) = section(shell.output("describe", "job"), "Events")[1:]
    assert described.split()[1:] == ["-", "-", "RLJob/-"]


def test_who_follows_events_gets_each_once(shell, jobs, client):
    job = jobs.create()
    post(client, job, "First", "said")
    with shell.running("events", "job", "--follow") as follower:
        assert follower.stdout.readline().split()[2] == "First"
        post(client, job, "Second", "said", 1)
        assert follower.stdout.readline().split()[2] == "Second"


def test_who_follows_events_is_told_that_the_job_is_deleted_though_another_has_its_name(shell, jobs, client):
    job = jobs.create()
    post(client, job, "First", "said")
    with shell.running("events", "job", "--follow") as follower:
        assert follower.stdout.readline().split()[2] == "First"
        jobs.delete()
        jobs.create()
        assert follower.communicate(timeout=GONE_SECONDS) == ("", "error: job was deleted meanwhile\n")
    assert follower.returncode == 1


def test_who_follows_events_hears_of_them_where_a_namespace_has_many(shell, jobs, client):
    """kubectl asks for 500 at a time, and then tells them as lists."""
    job = jobs.create()
    for second in range(501):
        post(client, job, "Many", "said", second)
    with shell.running("events", "job", "--follow") as follower:
        assert [follower.stdout.readline().split()[2] for _ in range(501)] == ["Many"] * 501
        post(client, job, "Last", "said", 501)
        assert follower.stdout.readline().split()[2] == "Last"


def test_objects_are_the_job_its_pods_and_its_events(shell, recovering, pods):
    found = json.loads(shell.output("describe", "job", "--output=json"))
    kinds = [(item["kind"], item["metadata"]["name"]) for item in found["items"]]
    assert kinds[:4] == [("RLJob", "job"), ("Pod", HEAD), *(("Pod", name) for name in WORKERS)]
    assert {kind for kind, _ in kinds[4:]} == {"Event"}
    described = yaml.safe_load(shell.output("describe", "job", "-o", "yaml"))
    assert described["items"][0]["status"]["recovery"]["action"] == "restart_driver"


def test_a_job_that_no_operator_has_seen_says_so(shell, jobs):
    jobs.create()
    told = facts(shell.output("describe", "job"))
    assert told["Phase"] == "none: no operator has seen it; does rljob-operator run, and watch this namespace?"
    assert (told["Progress"], told["Checkpoint"]) == ("none yet", "none yet")
    assert "Volume" not in told, "nobody has made one"
    jobs.create("mine", checkpoint={"volume": {"existingClaim": "data"}})
    assert facts(shell.output("describe", "mine"))["Volume"] == "PersistentVolumeClaim data"


def test_a_job_of_another_manager_says_so_and_nobody_waits_for_it_here(shell, jobs):
    jobs.create(managedBy="kueue.x-k8s.io/multikueue")
    told = facts(shell.output("describe", "job"))
    assert told["Manager"] == "kueue.x-k8s.io/multikueue, by spec.managedBy: rljob-operator leaves the job alone"
    assert "Phase" not in told
    left = "what follows is up to kueue.x-k8s.io/multikueue, by spec.managedBy\n"
    assert shell.output("suspend", "job", "--wait") == f"spec.suspend of job is true; {left}"
    assert shell.output("resume", "job", "--wait") == f"spec.suspend of job is false; {left}"
    nobody = "job has started no driver yet: kueue.x-k8s.io/multikueue looks after it"
    assert shell.error("logs", "job") == nobody


def test_a_new_checkpoint_begins_the_count_of_restarts_anew(shell, recovering, jobs):
    saved = CheckpointStatus(step=50, path="p", time=datetime.now(UTC))
    jobs.decide(cluster=ray_cluster(), pods=PODS, head=reports(checkpoint=saved), **attempted("Submitted"))
    assert facts(shell.output("describe", "job"))["Restarts"].endswith("; 0 of 5 since the checkpoint of step 50")


def test_a_status_of_an_older_spec_says_so(shell, jobs):
    jobs.create()
    jobs.decide()
    jobs.change(suspend=True)
    assert "the operator has not seen the newest change of the spec yet" in shell.output("describe", "job")
