"""`kubectl rljob logs` and `checkpoints` call kubectl for the right pod and its right container. kubectl is played."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rljob_operator import names
from rljob_operator.kubectl import app

HEAD, WORKERS = "job-head-abcde", ("job-workers-worker-zzzzz", "job-workers-worker-aaaaa")

PLAYED = """#!/bin/sh
case "$*" in
  *--output=json*rljobs*|*rljobs*--output=json*) cat {folder}/job.json ;;
  *role=head*) cat {folder}/head.json ;;
  *role=worker*) cat {folder}/worker.json ;;
  *) echo "$@" ;;
esac
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Attempt 2 of a job runs. Its worker 0 was created first, though its name comes last."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(PLAYED.format(folder=tmp_path))
    kubectl.chmod(kubectl.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    has(tmp_path, "job", {"metadata": {"name": "job", "namespace": "team", "generation": 1}, "status": {"attempt": 2}})
    has(tmp_path, "head", {"items": [pod(HEAD, 0)]})
    has(tmp_path, "worker", {"items": [pod(WORKERS[1], 2), pod(WORKERS[0], 1)]})
    return tmp_path


def pod(name: str, second: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "creationTimestamp": f"2026-11-22T12:00:0{second}Z"}}


def has(folder: Path, name: str, objects: dict[str, Any]) -> None:
    (folder / f"{name}.json").write_text(json.dumps(objects))


def called(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    ran = CliRunner().invoke(app, list(arguments))
    assert ran.exception is None, ran.exception
    return capfd.readouterr().out.strip()


def refused(*arguments: str) -> str:
    return str(CliRunner().invoke(app, list(arguments)).exception)


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ([], f"exec {HEAD} --container=agent -- rljob logs {names.VOLUME_FOLDER}"),
        (
            ["--previous", "-f"],
            f"exec {HEAD} --container=agent -- rljob logs {names.VOLUME_FOLDER} --attempt=1 --follow",
        ),
        (["--head"], f"logs {HEAD} --container={names.HEAD_CONTAINER}"),
        (["--agent", "-f"], f"logs {HEAD} --container={names.AGENT_CONTAINER} --follow"),
        (["--worker=0"], f"logs {WORKERS[0]} --container={names.WORKER_CONTAINER}"),
        (["--worker=1", "-p"], f"logs {WORKERS[1]} --container={names.WORKER_CONTAINER} --previous"),
    ],
)
def test_a_log_is_of_the_right_container(folder, capfd, options, command):
    assert called(capfd, "logs", "job", *options) == command


def test_checkpoints_are_read_on_the_volume(folder, capfd):
    assert called(capfd, "checkpoints", "job", "-n", "team") == (
        f"exec --namespace=team {HEAD} --container=agent -- rljob checkpoints {names.VOLUME_FOLDER}"
    )


def test_what_is_not_there_is_named(folder):
    assert "no worker 2: it has 2, counted from 0" in refused("logs", "job", "--worker=2")
    assert "exclude each other" in refused("logs", "job", "--head", "--agent")
    has(folder, "head", {"items": []})
    assert "the logs are on the volume job-checkpoints" in refused("logs", "job")
    assert refused("checkpoints", "job").endswith("none is known")
    has(folder, "job", {"metadata": {"name": "job", "namespace": "team", "generation": 1}})
    assert "has started no driver yet: not seen by an operator" in refused("logs", "job")
