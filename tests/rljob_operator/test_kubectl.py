"""`kubectl rljob`: what each command shows and asks of kubectl, which is played; and once with the real one."""

import json
import os
import subprocess
import sys
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from e2e.cluster.access import Access
from e2e.cluster.binaries import BINARIES
from rljob_api.conditions import Reason
from rljob_api.contract import ExitRecord
from rljob_api.v1alpha1 import CheckpointStatus, Progress, RecoveryStatus
from rljob_operator import names
from rljob_operator.head.ray_jobs import RayJobState
from rljob_operator.kubectl import app
from rljob_operator.kubectl.calls import Problem, problem
from rljob_operator.kubectl.jobs import span
from tests.rljob_operator.decisions import decide, ended, living
from tests.rljob_operator.snapshots import SPEC, job, manifest, reports, snapshot

NOW = datetime.now(UTC).replace(microsecond=0)
REPOSITORY = Path(__file__).parents[2]

PLAYED = """#!/bin/sh
case "$*" in
  *get*rljobs*|*patch*) echo "$@" >> {folder}/asked; cat {folder}/job.json ;;
  *--raw*) cat {folder}/raw.json ;;
  *get*pods*) cat {folder}/pods.json ;;
  *) echo "$@" ;;
esac
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a played kubectl; attempt 2 of a job runs."""
    (tmp_path / "kubectl").write_text(PLAYED.format(folder=tmp_path))
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    has(tmp_path, "job", attempt=2)
    (tmp_path / "pods.json").write_text(json.dumps({"items": [{"metadata": {"name": "head-x"}}]}))
    return tmp_path


def has(folder: Path, name: str, spec: Any = None, deleted: bool = False, **status: Any) -> None:
    found = manifest(status, **(spec or {}))
    found["metadata"] |= {"deletionTimestamp": "2026-11-22T12:00:00Z"} if deleted else {}
    (folder / f"{name}.json").write_text(json.dumps(found))


def decided(folder: Path, **given: Any) -> None:
    """The status that the operator would write now."""
    seen = snapshot(seconds=(NOW - snapshot().now).total_seconds(), **given)
    status = decide(seen).status
    assert status is not None
    has(folder, "job", **status.model_dump(mode="json", by_alias=True, exclude_none=True))


def output(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """kubectl writes to the terminal itself."""
    ran = CliRunner().invoke(app, list(arguments))
    assert ran.exception is None, ran.exception
    return (ran.stdout + capfd.readouterr().out).strip()


def refused(*arguments: str) -> str:
    error = CliRunner().invoke(app, list(arguments)).exception
    assert isinstance(error, Problem), error
    return str(error)


def facts(text: str) -> dict[str, str]:
    return {line[:12].strip(): line[12:] for line in text.splitlines() if line[0] != " "}


def test_a_recovering_job_is_described_with_its_remedy_and_what_it_costs(folder, capfd):
    saved = CheckpointStatus(step=40, path="/checkpoints/step-40-a1", time=NOW - timedelta(minutes=5))
    given = ended(
        75, "RankLost", "rank-3 died", restarts=1,
        base=job(recovery={"backoff": {"initial": "5h", "max": "5h"}}),
        recovery=RecoveryStatus(durable_step=40, charged=1, cures={"driver": 1}),
    )  # fmt: skip
    record = ExitRecord(code=75, reason="RankLost", message="rank-3 died")
    progress = Progress(step=45, total_steps=100, percent=45, reward=0.5, validation_reward=0.25)
    head = reports(RayJobState.FAILED, progress=progress, checkpoint=saved, exit=record)
    decided(folder, **given | {"head": head})
    text = output(capfd, "describe", "job")
    found = facts(text)
    assert (found["Name"], found["Phase"], found["Attempt"][0]) == ("team/job", "Recovering", "1")
    assert found["Reason"].startswith("RankLost: ")
    assert f"{Reason.RANK_LOST.meaning} {Reason.RANK_LOST.remedy}" in text
    assert "the next attempt starts in " in found["Recovery"]
    assert found["Restarts"] == "2 in all; 2 of 5 since the checkpoint of step 40"
    assert found["Progress"] == "step 45/100, reward 0.500, validation 0.250"
    assert found["Checkpoint"].startswith("step 40, ")
    assert found["Volume"] == "PersistentVolumeClaim job-checkpoints"

    has(folder, "job", phase="Recovering", excludedNodes=[{"name": "n1", "reason": "FabricSlow"}])
    assert facts(output(capfd, "describe", "job"))["Excluded"].startswith("n1 (FabricSlow); ")

    later = CheckpointStatus(step=50, path="p", time=NOW)
    decided(folder, **living(head=reports(checkpoint=later), recovery=given["recovery"]))
    assert facts(output(capfd, "describe", "job"))["Restarts"].endswith("; 0 of 5 since the checkpoint of step 50")


def test_a_job_that_no_operator_has_seen_or_another_controller_manages_is_described_so(folder, capfd):
    has(folder, "job")
    found = facts(output(capfd, "describe", "job"))
    assert found["Phase"].startswith("none: no operator has seen it")
    assert (found["Progress"], found["Checkpoint"]) == ("none yet", "none yet")
    has(folder, "job", phase="Running", observedGeneration=2)
    assert "has not seen the newest change of the spec" in output(capfd, "describe", "job")
    has(folder, "job", {"managedBy": "example.com/other"})
    found = facts(output(capfd, "describe", "job"))
    assert (found["Manager"].partition(",")[0], "Phase" in found) == ("example.com/other", False)
    for command in ("suspend", "resume"):
        assert "example.com/other manages the job" in output(capfd, command, "job")


def test_a_queued_job_is_described_with_its_place_if_kueue_gives_it(folder, capfd):
    workload = {"name": "w", "queue": "lab", "evictions": 2, "lostSteps": 3}
    has(folder, "job", phase="Queued", workload=workload)
    assert facts(output(capfd, "describe", "job"))["Queue"] == "lab"
    waiting = [{"metadata": {"name": name}, "positionInLocalQueue": place} for place, name in enumerate("vwx")]
    (folder / "raw.json").write_text(json.dumps({"items": waiting}))
    found = facts(output(capfd, "describe", "job"))
    assert (found["Queue"], found["Evictions"]) == ("lab; place 2 of 3", "2; the last one lost 3 steps")
    has(folder, "job", phase="Running", workload=workload | {"clusterQueue": "gpus"})
    assert facts(output(capfd, "describe", "job"))["Queue"] == "lab; quota of ClusterQueue gpus"


@pytest.mark.parametrize(("suspended", "command", "patched"), [
    (False, "suspend", True), (True, "suspend", False), (True, "resume", True), (False, "resume", False),
])  # fmt: skip
def test_suspend_and_resume_patch_what_is_not_so_yet(folder, capfd, suspended, command, patched):
    has(folder, "job", {"suspend": suspended}, checkpoint={"step": 40})
    assert "checkpoint is of step 40" in output(capfd, command, "rljob.rljob.dev/job", "--context=c")
    patches = [line for line in (folder / "asked").read_text().splitlines() if line.startswith("patch")]
    assert len(patches) == patched
    assert all("--context=c" in each and "--field-manager=kubectl-rljob" in each for each in patches)


@pytest.mark.parametrize("command", ["suspend", "resume"])
def test_nothing_is_promised_of_a_job_whose_state_is_final(folder, command):
    has(folder, "job", phase="Failed")
    assert "which is final" in refused(command, "job")
    has(folder, "job", deleted=True)
    assert "is being deleted, which is final" in refused(command, "job")


IN_AGENT = "head-x --container=agent -- rljob"
COMMANDS = [
    (["logs", "job"], f"exec {IN_AGENT} logs {names.VOLUME_FOLDER}"),
    (["logs", "job", "--previous", "-f"], f"exec {IN_AGENT} logs {names.VOLUME_FOLDER} --attempt=1 --follow"),
    (["checkpoints", "job", "-n", "team"], f"exec --namespace=team {IN_AGENT} checkpoints {names.VOLUME_FOLDER}"),
    (
        ["samples", "job", "--step=4", "--min-reward=-1", "--max-reward=0.5", "--status=truncated"],
        f"exec {IN_AGENT} samples {names.VOLUME_FOLDER} --step=4 --status=truncated --min-reward=-1.0 --max-reward=0.5",
    ),
]


@pytest.mark.parametrize(("arguments", "command"), COMMANDS)
def test_what_is_on_the_volume_is_read_by_way_of_the_agent(folder, capfd, arguments, command):
    assert output(capfd, *arguments) == command


def test_the_page_of_samples_is_written_as_the_agent_prints_it(folder, capfd):
    page = folder / "page.html"
    assert output(capfd, "samples", "job", f"--html={page}") == f"{page}: the episodes of job"
    assert page.read_text() == f"exec {IN_AGENT} samples {names.VOLUME_FOLDER} --html=-\n"
    assert "cannot write" in refused("samples", "job", f"--html={folder}/none/page.html")


def test_what_is_not_there_is_named(folder, monkeypatch):
    (folder / "pods.json").write_text(json.dumps({"items": []}))
    assert "the logs are on the volume job-checkpoints" in refused("logs", "job")
    assert refused("checkpoints", "job").endswith("none is known")
    assert "the samples are on the volume job-checkpoints" in refused("samples", "job")
    has(folder, "job", attempt=1)
    assert "first attempt" in refused("logs", "job", "-p")
    has(folder, "job")
    assert "has started no driver yet" in refused("logs", "job")
    monkeypatch.setenv("PATH", os.devnull)
    assert refused("describe", "job") == "kubectl is not on the PATH; install it"


@pytest.mark.parametrize("name", ["-A", "", "Gsm8k", "a/b", "pod/gsm8k", "a b", "--all"])
def test_what_is_no_name_never_reaches_kubectl(name):
    assert "is not a name of an RLJob" in refused("describe", "--", name)


def test_kubectl_s_errors_are_quoted_on_one_line():
    found = str(problem('W1122 12:00:00.000 noise\nError from server (NotFound): rljobs.rljob.dev "a" not found\n'))
    assert ("noise" in found, "kubectl get rljobs --all-namespaces" in found) == (False, True)
    assert str(problem("error: You must be\nlogged in\n")) == "You must be logged in"
    assert str(problem("")) == "kubectl failed without a message"


def test_a_span_is_its_two_largest_units():
    assert [span(seconds) for seconds in (-5, 0, 12, 3900, 90_000)] == ["0s", "0s", "12s", "1h5m", "1d1h"]


def test_the_plugin_on_the_path_writes_as_the_user(cluster: Access, namespace: str, tmp_path: Path) -> None:
    scripts = tomllib.loads((REPOSITORY / "operator/pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["kubectl-rljob"].partition(":")
    plugin = tmp_path / "kubectl-rljob"
    plugin.write_text(f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    plugin.chmod(0o755)
    (tmp_path / "kubectl").symlink_to(BINARIES["kubectl"].path)
    paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def rljob(*arguments: str) -> tuple[int, str, str]:
        context = [f"--context={cluster.context}"] if cluster.context else []
        done = subprocess.run(
            ["kubectl", "rljob", *arguments, f"--namespace={namespace}", *context],
            env={**os.environ, **paths, **cluster.variables}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    made = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "job"}, "spec": dict(SPEC)}
    where = f"--namespace={namespace}"
    cluster.kubectl("create", "--filename=-", where, objects=json.dumps(made))
    assert rljob("suspend", "job") == (0, "job: spec.suspend is true; there is no checkpoint yet\n", "")
    found = json.loads(cluster.kubectl("get", "rljob", "job", where, "--output=json", "--show-managed-fields"))
    managers = {entry["manager"]: entry["fieldsV1"] for entry in found["metadata"]["managedFields"]}
    assert managers["kubectl-rljob"] == {"f:spec": {"f:suspend": {}}}
    code, out, errors = rljob("describe", "gsm8k")
    assert (code, out, errors.count("\n"), errors.startswith("error: ")) == (1, "", 1, True)


def test_what_pods_write_does_not_steer_the_terminal(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "kubectl").write_text(
        PLAYED.format(folder=folder).replace(
            '  *) echo "$@"', "  *) printf '\\033[2Jlog\\n'; printf '\\033]0;t\\007error\\n' >&2"
        )
    )
    ran = CliRunner().invoke(app, ["logs", "job"])
    assert (ran.stdout, ran.stderr) == ("log\n", "error\n")
    has(
        folder,
        "job",
        attempt=2,
        phase="Failed",
        conditions=[{"type": "Ready", "status": "False", "reason": "x", "message": "\x1b[31mx"}],
    )
    assert "\x1b" not in output(capfd, "describe", "job")
