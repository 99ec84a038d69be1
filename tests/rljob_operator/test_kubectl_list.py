"""`kubectl rljob list`: kubectl finds the plugin, and a row says how a job does."""

import json
import os
import pty
import re
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import yaml

from rljob_api.v1alpha1 import CheckpointStatus, Progress
from tests.rljob_operator.snapshots import PODS, attempted, ray_cluster, reports


def rows(table):
    """By the columns' names; cells are two blanks or more apart."""
    head, *lines = table.splitlines()
    starts = [match.start() for match in re.finditer(r"\S+", head)]
    ends = [*starts[1:], None]
    cells = ([line[a:b].strip() for a, b in zip(starts, ends, strict=True)] for line in lines)
    return {row[0]: dict(zip(head.split(), row, strict=True)) for row in cells}


@pytest.fixture
def four(jobs):
    """A job that runs, one on its way, one suspended and one that nobody has seen."""
    now = datetime.now(UTC).replace(microsecond=0)
    progress = Progress(step=45, total_steps=100, percent=45, reward=0.51234, eta=now + timedelta(hours=2, seconds=30))
    saved = CheckpointStatus(step=40, path="/checkpoints/checkpoints/step-40-a1", time=now - timedelta(hours=3))
    jobs.create("job")
    head = reports(progress=progress, checkpoint=saved)
    jobs.decide("job", cluster=ray_cluster(), pods=PODS, head=head, restarts=2, **attempted("Submitted"))
    jobs.create("new")
    jobs.create("paused", suspend=True)
    jobs.decide("paused")
    jobs.create("starting")
    jobs.decide("starting")
    return ["job", "new", "paused", "starting"]


def test_kubectl_finds_the_plugin_and_it_shows_jobs_at_a_glance(shell, four):
    table = shell.output("list")
    found = rows(table)
    assert list(found) == four
    job = found["job"]
    assert (job["PHASE"], job["STEP"], job["REWARD"], job["RESTARTS"]) == ("Running", "45/100", "0.512", "2")
    assert job["ETA"].startswith(("2h", "1h59m"))
    assert job["CHECKPOINT"].startswith("40 (3h")
    assert [found[name]["PHASE"] for name in four[1:]] == [
        "(not seen by an operator)", "Suspended", "Starting (ClusterNotReady)",
    ]  # fmt: skip
    assert {found["new"][column] for column in ("STEP", "REWARD", "ETA", "CHECKPOINT")} == {"-"}
    assert table.isascii()
    assert "\x1b" not in table
    assert not any(line.endswith(" ") for line in table.splitlines())


def test_a_job_of_another_manager_is_left_to_it(shell, jobs):
    jobs.create(managedBy="kueue.x-k8s.io/multikueue")
    assert rows(shell.output("list"))["job"]["PHASE"] == "(left to kueue.x-k8s.io/multikueue)"


def test_a_failed_job_shows_its_reason(shell, jobs):
    from rljob_api.contract import ExitRecord
    from rljob_operator.head import RayJobState

    jobs.create()
    head = reports(RayJobState.FAILED, exit=ExitRecord(code=66, reason="Reward", message="KeyError"))
    jobs.decide(cluster=ray_cluster(), pods=PODS, head=head, **attempted("Submitted"))
    assert rows(shell.output("list"))["job"]["PHASE"] == "Failed (Reward)"


def test_objects_are_those_of_the_api_server(shell, four):
    found = json.loads(shell.output("list", "--output=json"))
    assert found["kind"] == "List"
    assert [item["metadata"]["name"] for item in found["items"]] == four
    assert yaml.safe_load(shell.output("list", "-o", "yaml")) == found


def test_all_namespaces_have_a_column(shell, jobs):
    jobs.create("mine")
    elsewhere = replace(shell, namespace="default")
    assert rows(elsewhere.output("list", "--all-namespaces"))[shell.namespace]["NAME"] == "mine"
    assert "mine" not in elsewhere.output("list")


def test_an_empty_namespace_is_said_beside_the_output(shell):
    assert shell.run("list") == (0, "", f"there are no RLJobs in namespace {shell.namespace}\n")


def test_a_terminal_gets_colours(shell, jobs):
    jobs.create()
    jobs.decide()
    terminal, its_end = pty.openpty()
    environment = {**shell.environment, "TERM": "xterm", "COLUMNS": "120"}
    subprocess.run(shell.command("list"), env=environment, stdout=its_end, check=True)
    os.close(its_end)
    shown = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert "\x1b[36mStarting (ClusterNotReady)\x1b[0m" in shown
