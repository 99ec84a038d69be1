"""`kubectl rljob logs` and `checkpoints`: from the right pod, its right container, and the job's volume."""

import json
import signal
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
import pytest
from kubernetes.client import CoreV1Api

from e2e.cluster.fixtures import new_namespace
from rljob_api.v1alpha1 import CheckpointStatus
from rljob_operator import names
from rljob_trainer.volume import Volume
from tests.e2e.waiting import eventually
from tests.rljob_operator.kubectl_support import Jobs, Shell, pod
from tests.rljob_operator.kwok_kubelet import kubelet
from tests.rljob_operator.snapshots import PODS, attempted, ray_cluster, reports
from tests.rljob_trainer.checkpoint_support import begin_attempt

HEAD, WORKERS = "job-head-abcde", ("job-workers-worker-zzzzz", "job-workers-worker-aaaaa")

RLJOB = """#!/bin/sh
# In a head pod, with the volume at {inside}.
for argument; do
  [ "$argument" = {inside} ] && argument={outside}
  set -- "$@" "$argument"; shift
done
exec {python} -m rljob_trainer.cli "$@"
"""


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    """Of two attempts, with a checkpoint of the first."""
    volume = Volume(tmp_path_factory.mktemp("volume"))
    begin_attempt(volume, 1).save(20)
    begin_attempt(volume, 2)
    volume.logs.mkdir()
    for attempt in (1, 2):
        volume.log(attempt).write_text(json.dumps({"event": f"of_attempt_{attempt}", "level": "info"}) + "\n")
    return volume


@pytest.fixture(scope="module")
def node(cluster, volume, tmp_path_factory):
    folder, programs = tmp_path_factory.mktemp("kubelet"), tmp_path_factory.mktemp("image")
    (programs / "rljob").write_text(
        RLJOB.format(inside=names.VOLUME_FOLDER, outside=volume.root, python=sys.executable)
    )
    (programs / "rljob").chmod(0o755)
    containers = [(HEAD, names.HEAD_CONTAINER), (HEAD, names.AGENT_CONTAINER)]
    containers += [(worker, names.WORKER_CONTAINER) for worker in WORKERS]
    logs = {of: folder / ".".join(of) for of in containers}
    for (name, container), file in logs.items():
        written = f"2026-11-22T12:00:00.000000000Z stdout F {container} of {name}"
        file.write_text(f"{written}\n")
        file.with_name(f"{file.name}.previous").write_text(f"{written} before\n")
    with kubelet(cluster, folder, logs, programs) as played:
        yield played.node


@pytest.fixture(scope="module")
def running(programs, cluster, node):
    """The shell where attempt 2 of a job runs. Its worker 0 was made first, though its name comes last."""
    with cluster.client() as client, new_namespace(client) as namespace:
        jobs = Jobs(client, namespace)
        core: Any = CoreV1Api(client)
        jobs.create()
        jobs.decide(cluster=ray_cluster(), pods=PODS, head=reports(), **attempted("Submitted", attempt=2))
        head = pod(HEAD, names.HEAD, names.HEAD_CONTAINER, names.AGENT_CONTAINER, nodeName=node)
        workers = [pod(worker, names.WORKER, names.WORKER_CONTAINER, nodeName=node) for worker in WORKERS]
        made = core.create_namespaced_pod(namespace, workers[0]).metadata.creation_timestamp
        eventually(lambda: datetime.now(UTC) > made + timedelta(seconds=1))
        for later in (workers[1], head):
            core.create_namespaced_pod(namespace, later)
        eventually(lambda: all(each.status.phase == "Running" for each in core.list_namespaced_pod(namespace).items))
        yield Shell(programs, cluster, namespace)


def test_the_drivers_log_comes_from_the_volume_by_way_of_the_agent(running, volume):
    assert "of_attempt_2" in running.output("logs", "job")
    assert "of_attempt_1" in running.output("logs", "job", "--previous")
    with running.running("logs", "job", "--follow") as follower:
        assert "of_attempt_2" in follower.stdout.readline()
        follower.send_signal(signal.SIGINT)
        assert follower.wait() == 130

    def has_noticed() -> bool:
        """Who followed in the pod, with the next line, that nobody listens any more."""
        with volume.log(2).open("a") as file:
            file.write("the end\n")
        found = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
        return not any(str(volume.root) in command and "--follow" in command for command in found)

    eventually(has_noticed)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--head"], f"{names.HEAD_CONTAINER} of {HEAD}"),
        (["--agent"], f"{names.AGENT_CONTAINER} of {HEAD}"),
        (["--worker=0"], f"{names.WORKER_CONTAINER} of {WORKERS[0]}"),
        (["--worker=1", "--previous"], f"{names.WORKER_CONTAINER} of {WORKERS[1]} before"),
    ],
)
def test_a_containers_log_is_that_of_the_right_one(running, options, said):
    assert running.output("logs", "job", *options) == f"{said}\n"


def test_checkpoints_are_read_on_the_volume(running):
    head, row = running.output("checkpoints", "job").splitlines()
    assert head.split()[:2] == ["step", "attempt"]
    assert row.split()[:2] == ["20", "1"]
    assert row.endswith("whole")


def test_a_worker_that_is_not_there(running):
    words = "job has no worker 2: it has 2, counted from 0; see kubectl rljob describe job"
    assert running.error("logs", "job", "--worker=2") == words


def test_without_a_head_the_status_knows_the_newest_checkpoint_and_the_volume_has_the_logs(shell, jobs):
    jobs.create(suspend=True)
    assert shell.error("logs", "job") == "job has started no driver yet: not seen by an operator"
    jobs.decide()
    assert shell.error("logs", "job") == "job has started no driver yet: spec.suspend is true"
    assert shell.error("checkpoints", "job").endswith("; none is known")

    saved = CheckpointStatus(step=20, path="/checkpoints/step-20-a1", time=datetime.now(UTC))
    jobs.decide(checkpoint=saved, attempt=1)
    assert shell.error("checkpoints", "job").endswith("last saw that of step 20: /checkpoints/step-20-a1")
    assert shell.error("logs", "job").endswith("the logs are on the volume job-checkpoints, in the folder logs")
    assert shell.error("logs", "job", "--head").startswith("job has no head pod: the job is Suspended")


def test_a_pod_without_a_kubelet_answers_in_the_api_servers_words(shell, jobs, client):
    jobs.create()
    jobs.decide(attempt=1)
    core: Any = CoreV1Api(client)
    head = pod(HEAD, names.HEAD, names.HEAD_CONTAINER, names.AGENT_CONTAINER)
    core.create_namespaced_pod(shell.namespace, head)
    eventually(lambda: core.read_namespaced_pod(HEAD, shell.namespace).status.phase == "Running")
    for command in (["logs", "job"], ["logs", "job", "--head"]):
        assert "no preferred addresses found" in shell.error(*command)
