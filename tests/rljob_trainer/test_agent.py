"""Real requests to one agent process, which serves a directory that each test changes."""

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rljob_trainer.checkpoint.manifest import commit
from rljob_trainer.cli.agent import OPEN_METRICS_VARIABLE
from rljob_trainer.progress import names
from rljob_trainer.progress.metrics import MetricsWriter
from rljob_trainer.progress.reporter import ProgressReporter
from rljob_trainer.volume import Volume, read_json, write_json

TOKEN = "a-token-of-the-test"


@dataclass(frozen=True)
class Agent:
    url: str
    volume: Volume

    def ask(self, path: str, *, method: str = "GET", token: str | None = TOKEN) -> tuple[int, Any, dict[str, str]]:
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        request = urllib.request.Request(self.url + path, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                body, status, received = answer.read().decode(), answer.status, dict(answer.headers)
        except urllib.error.HTTPError as error:
            body, status, received = error.read().decode(), error.code, dict(error.headers)
        return status, json.loads(body) if "json" in received["content-type"] else body, received


@contextmanager
def started(folder: Path, **variables: str) -> Iterator[Agent]:
    token = folder / "token"
    token.write_text(TOKEN + "\n")
    command = [sys.executable, "-m", "rljob_trainer.cli", "agent", "--dir", str(folder / "run"), "--port", "0"]
    with subprocess.Popen(
        [*command, "--token-file", str(token)], env=os.environ | variables, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        yield Agent(child.stdout.readline().split()[-1], Volume(folder / "run"))
        child.terminate()


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    with started(tmp_path_factory.mktemp("agent")) as agent:
        yield agent


@pytest.fixture
def agent(process: Agent) -> Agent:
    """The running agent, on a directory that does not exist yet."""
    shutil.rmtree(process.volume.root, ignore_errors=True)
    return process


def test_health_needs_no_token(agent: Agent) -> None:
    assert agent.ask("/healthz", token=None)[:2] == (200, {"status": "ok"})


@pytest.mark.parametrize("path", ["/v1/progress", "/v1/checkpoints", "/v1/exit", "/metrics", "/no-such-path"])
@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", TOKEN[:-1]])
def test_everything_else_needs_the_token(agent: Agent, path: str, token: str | None) -> None:
    status, body, headers = agent.ask(path, token=token)
    assert status == 401
    assert "token" in body["error"]
    assert headers["www-authenticate"].startswith("Bearer")


def test_open_metrics_opens_the_metrics_alone(tmp_path: Path) -> None:
    with started(tmp_path, **{OPEN_METRICS_VARIABLE: "true"}) as agent:
        assert "rljob_attempt 0.0" in agent.ask("/metrics", token=None)[1]
        assert agent.ask("/v1/progress", token=None)[0] == 401


def test_a_request_without_the_token_changes_nothing(agent: Agent) -> None:
    assert agent.ask("/v1/checkpoint?stop=true", method="POST", token="wrong")[0] == 401
    assert not agent.volume.request.exists()


def test_an_empty_directory_answers_that_there_is_nothing(agent: Agent) -> None:
    assert agent.ask("/v1/progress")[:2] == (404, {"error": "the driver has not reported progress yet"})
    assert agent.ask("/v1/checkpoints")[:2] == (200, {"checkpoints": []})
    assert agent.ask("/v1/exit")[:2] == (
        200,
        {"attempt": 0, "claim": None, "exit": None, "preflight": None, "heartbeat": None},
    )
    assert "rljob_attempt 0.0" in agent.ask("/metrics")[1]


def test_progress_is_what_the_driver_wrote(agent: Agent) -> None:
    with ProgressReporter(agent.volume) as progress:
        progress.begin(step=3, total_steps=12)
        progress.phase("rollout")

    status, body, _ = agent.ask("/v1/progress")
    assert status == 200
    assert (body["step"], body["totalSteps"], body["percent"], body["phase"]) == (3, 12, 25.0, "rollout")


def test_only_checkpoints_with_a_manifest_are_listed(agent: Agent) -> None:
    volume = agent.volume
    for step in (20, 9):
        staged = volume.checkpoints / "staged"
        staged.mkdir(parents=True)
        (staged / "weights").write_bytes(b"1234")
        commit(staged, volume.checkpoint(step, 1), step=step, attempt=1, reward=0.5)
    volume.checkpoint(30, 1).mkdir()
    volume.checkpoint(40, 1).mkdir()
    (volume.checkpoint(40, 1) / "manifest.json").write_text('{"step": 40')

    listed = agent.ask("/v1/checkpoints")[1]["checkpoints"]
    assert [(one["step"], one["attempt"], one["reward"], one["bytes"]) for one in listed] == [
        (9, 1, 0.5, 4),
        (20, 1, 0.5, 4),
    ]
    assert listed[1]["path"] == str(volume.checkpoint(20, 1))
    assert listed[1]["time"].endswith("Z")


def test_a_checkpoint_that_cannot_be_read_hides_older_ones_alone(agent: Agent) -> None:
    """The next attempt resumes from the last one listed, so an older one must not be last."""
    volume = agent.volume
    for step in (1, 2, 3):
        staged = volume.checkpoints / "staged"
        staged.mkdir(parents=True)
        commit(staged, volume.checkpoint(step, 1), step=step, attempt=1, reward=None)
    for step, expected in ((1, (200, [2, 3])), (3, (503, "checkpoint step-3-a1 cannot be read: Is a directory"))):
        manifest = volume.checkpoint(step, 1) / "manifest.json"
        manifest.unlink()
        manifest.mkdir()
        status, body, _ = agent.ask("/v1/checkpoints")
        said = [one["step"] for one in body["checkpoints"]] if status == 200 else body["error"].split(";")[0]
        assert (status, said) == expected
    assert agent.ask("/healthz", token=None)[0] == 200


def test_the_exit_is_that_of_the_last_attempt(agent: Agent) -> None:
    volume = agent.volume
    write_json(volume.claim(9), {"attempt": 9, "resumedStep": None})
    write_json(volume.exit_record(9), {"code": 75, "reason": "Infrastructure", "message": "lost", "field": None})
    write_json(volume.preflight_record(9), {"passed": False})
    last = agent.ask("/v1/exit")[1]
    assert (last["exit"]["code"], last["preflight"]) == (75, {"passed": False})

    write_json(volume.claim(10), {"attempt": 10, "resumedStep": 4})
    last = agent.ask("/v1/exit")[1]
    assert (last["attempt"], last["claim"]) == (10, {"attempt": 10, "resumedStep": 4})
    assert last["exit"] is last["preflight"] is None


def test_the_heartbeat_changes_while_the_driver_lives(agent: Agent) -> None:
    with ProgressReporter(agent.volume) as progress:
        progress.begin(step=0, total_steps=1)
    first = agent.ask("/v1/exit")[1]["heartbeat"]
    os.utime(agent.volume.progress, (1.0, 2.0))
    assert agent.ask("/v1/exit")[1]["heartbeat"] not in (None, first)


@pytest.mark.parametrize(("query", "stop"), [("", False), ("?stop=false", False), ("?stop=true", True)])
def test_a_checkpoint_is_asked_for_through_the_control_folder(agent: Agent, query: str, stop: bool) -> None:
    status, body, _ = agent.ask(f"/v1/checkpoint{query}", method="POST")
    assert status == 202
    assert read_json(agent.volume.request) == body
    assert (body["checkpoint"], body["stop"]) == (True, stop)

    again = agent.ask(f"/v1/checkpoint{query}", method="POST")[1]
    assert again["id"] != body["id"]


def test_wrong_requests_are_answered_in_json(agent: Agent) -> None:
    assert agent.ask("/v1/checkpoint?stop=maybe", method="POST")[:2] == (400, {"error": "stop must be true or false"})
    assert agent.ask("/v1/checkpoint")[:2] == (405, {"error": "Method Not Allowed"})
    assert agent.ask("/no-such-path")[:2] == (404, {"error": "Not Found"})


def test_half_written_files_count_as_absent(agent: Agent) -> None:
    volume = agent.volume
    for path in (volume.progress, volume.claim(1), volume.exit_record(1), volume.metrics(1)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"step": 1, "sta')

    assert agent.ask("/v1/progress")[0] == 404
    last = agent.ask("/v1/exit")[1]
    assert (last["attempt"], last["claim"], last["exit"]) == (1, None, None)
    assert agent.ask("/metrics")[0] == 200
    volume.progress.write_bytes(b"\xff\xfe")
    assert agent.ask("/v1/progress")[0] == 404
    volume.progress.write_text("[1]")
    assert agent.ask("/v1/progress")[0] == 404


def test_a_volume_that_cannot_be_written_is_unavailable(agent: Agent) -> None:
    agent.volume.root.mkdir()
    agent.volume.control.write_text("a file where a folder should be")
    status, body, _ = agent.ask("/v1/checkpoint", method="POST")
    assert (status, list(body)) == (503, ["error"])


VALIDATED = {
    names.VALIDATION_REWARD: 0.5, "validation/reward/exact": 0.6, "validation/reward/exact/reward": 0.7,
    "validation/org/reward-math/reward": 0.8, "validation/org/reward-math/reward/exact/parsed": 0.9,
}  # fmt: skip


def test_prometheus_gets_the_newest_step_with_units(agent: Agent) -> None:
    write_json(agent.volume.claim(2), {"attempt": 2, "resumedStep": None})
    with ProgressReporter(agent.volume) as progress, MetricsWriter(agent.volume, 2) as writer:
        progress.begin(step=0, total_steps=12)
        writer.write(0, "rl", VALIDATED)
        for step in (1, 2):
            metrics = {
                names.REWARD_MEAN: step / 4,
                names.TIME_ROLLOUT: 0.5,
                "reward/exact": 0.25,
                names.SYNC_BYTES: 8.0,
            }
            progress.step_done(writer.write(step, "rl", metrics | {names.TIME_STEP: 1.0}))

    families = text_string_to_metric_families(agent.ask("/metrics")[1])
    samples = {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}
    expected = {
        ("rljob_attempt",): 2, ("rljob_step",): 2, ("rljob_total_steps",): 12, ("rljob_reward_mean",): 0.5,
        ("rljob_time_rollout_seconds",): 0.5, ("rljob_sync_bytes",): 8, ("rljob_reward_function", "exact"): 0.25,
        ("rljob_validation_reward",): 0.5, ("rljob_validation_function", "", "exact"): 0.6,
        ("rljob_validation_function", "", "exact/reward"): 0.7,
        ("rljob_validation_source_reward", "org/reward-math"): 0.8,
        ("rljob_validation_function", "org/reward-math", "exact/parsed"): 0.9,
    }  # fmt: skip
    assert expected.items() <= samples.items()
    assert samples[("rljob_driver_silence_seconds",)] < 30


def test_the_agent_loads_neither_torch_nor_ray_nor_the_models_before_it_listens() -> None:
    program = "import sys, rljob_trainer.cli.agent; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert "rljob_trainer.agent.app" in done.stdout.split()
    assert not set(done.stdout.split()) & {"torch", "ray", "transformers", "vllm", "matplotlib", "rljob_api"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the agent needs a token"),
        (["--token-file", "/no/such/file"], "cannot read --token-file /no/such/file"),
        (["--token-file", __file__, "--host", "256.0.0.1"], "cannot listen on 256.0.0.1:8900"),
    ],
)
def test_a_wrong_start_is_a_short_error(tmp_path: Path, arguments: list[str], message: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "RLJOB_AGENT_TOKEN"}
    command = [sys.executable, "-m", "rljob_trainer.cli", "agent", "--dir", str(tmp_path), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 64
    assert done.stderr.startswith(f"error: {message}")
    assert "Traceback" not in done.stderr
