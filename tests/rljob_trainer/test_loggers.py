"""Each tracker's package without a network: the tests read back what was logged."""

import html
import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rljob_trainer.errors import JobError
from rljob_trainer.loggers import LoggerSet, Status
from rljob_trainer.loggers.episodes import COLUMNS, episode_table
from rljob_trainer.progress.run_info import RunInfo

CONFIG = {"model": {"path": "m"}, "training": {"steps": 5, "loggers": ["console"]}}


@pytest.fixture
def run(tmp_path: Path) -> RunInfo:
    return RunInfo("reverse-text", "0e5a2c11-7d0b", tmp_path / "run", project="tests", config=CONFIG)


@pytest.fixture(autouse=True)
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Asserts at the end that no tracker's process looked up or connected to an address."""
    seen = tmp_path / "network.txt"
    (tmp_path / "sitecustomize.py").write_text(WATCH.format(file=str(seen)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    yield
    assert not seen.exists(), seen.read_text()


WATCH = """
import sys
def watch(event, arguments):
    if event == "socket.getaddrinfo" or event == "socket.connect" and isinstance(arguments[1], tuple):
        with open({file!r}, "a") as file:
            print(event, arguments, file=file)
sys.addaudithook(watch)
"""


def attempt(name: str, run: RunInfo, rewards: Mapping[int, float], status: Status) -> None:
    """One attempt that logs these rewards by step."""
    loggers = LoggerSet([name], replace(run, resumed_step=min(rewards) - 1))
    loggers.episodes(min(rewards), [sample(min(rewards))])
    for step, reward in rewards.items():
        loggers.log(step, {"reward/mean": reward, "actor/kl": 0.5})
    loggers.finish(status)


MARKUP = "<think>**7**</think> | <img src=x>"


def sample(step: int) -> dict[str, Any]:
    """What Reporting writes of an episode whose prompt is far too long for a cell."""
    parts = [
        {"who": "prompt", "text": "p" * 100_000, "tokens": 3, "inLoss": 0},
        {"who": "policy", "text": MARKUP, "tokens": 2, "inLoss": 2, "reward": 0.5},
        {"who": "environment", "text": "again", "tokens": 1, "inLoss": 0},
        {"who": "policy", "text": "8", "tokens": 2, "inLoss": 1},
    ]
    episode = {"sample": 0, "status": "finished", "reason": "", "counts": {"turns": 2.0}, "trajectories": [parts]}
    return {"step": step, "task": f"validation/{step}/0", "reward": 0.5, "groundTruth": {"n": 8}, "episode": episode}


def row(step: int, text: str = "") -> list[Any]:
    """The row of `sample`, but for its transcript."""
    return [f"validation/{step}/0", 0.5, "finished", 2, 3, '{"n": 8}', text]


def bounded(text: str, markup: str = MARKUP) -> bool:
    """Whether a transcript has its start and its end, and is short."""
    return text.lstrip().startswith("prompt") and markup in text and "again" in text and len(text) < 4200


def test_an_episode_without_a_reward_has_none_in_the_table() -> None:
    (found,) = episode_table(3, [sample(3) | {"reward": math.nan}]).rows
    assert list(found[:-1]) == ["validation/3/0", None, *row(3)[2:-1]]
    assert bounded(str(found[-1]))


def test_the_console_is_a_line_a_step_in_the_drivers_log(run: RunInfo) -> None:
    with capture_logs() as lines:
        loggers = LoggerSet(["console"], run)
        for step in (1, 2):  # short supervised steps
            loggers.log(step, {"actor/loss": 2.71828, "time/step": 0.5})
        loggers.episodes(2, [sample(2)])  # rljob samples shows them
        loggers.log(2, {"validation/reward": 0.125})
        for step in (3, 4):
            loggers.log(step, {"response/length_mean": 4.0, "response/length_max": 6.0, "time/step": 0.5})
        loggers.finish("done")
        LoggerSet([], run).log(5, {"reward/mean": 0.5, "time/step": 0.5})
    logged = [{key: value for key, value in line.items() if key != "log_level"} for line in lines]
    assert logged == [
        {"event": "step_finished", "step": 1, "actor/loss": 2.72, "time/step": 0.5},
        {"event": "validated", "step": 2, "validation/reward": 0.125},
        {"event": "step_finished", "step": 3, "response/length_mean": 4.0, "time/step": 0.5},
        {"event": "step_finished", "step": 4, "response/length_mean": 4.0, "time/step": 0.5},
    ]


def test_tensorboard_holds_the_metrics_and_drops_the_steps_that_a_resumed_attempt_runs_again(run: RunInfo) -> None:
    attempt("tensorboard", run, {1: 0.25, 2: 0.25, 3: 0.25}, "stopped")
    attempt("tensorboard", run, {3: 0.75, 4: 0.75}, "done")

    events = EventAccumulator(str(run.directory / "tensorboard")).Reload()
    assert shown(events, "reward/mean") == [(1, 0.25), (2, 0.25), (3, 0.75), (4, 0.75)]
    assert shown(events, "actor/kl") == [(step, 0.5) for step in (1, 2, 3, 4)]
    written = {each.step: each.tensor_proto.string_val[0].decode() for each in events.Tensors("episodes")}
    assert list(written) == [1, 3]
    assert "    task: validation/3/0\n    reward: 0.5\n    status: finished\n    turns: 2\n" in written[3]
    assert MARKUP in written[3]
    assert len(written[3]) < 4500
    assert all(line.startswith("    ") for line in written[3].splitlines()), "code, which Markdown leaves as it is"


def shown(events: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events.Scalars(tag)]


@pytest.mark.slow
def test_mlflow_continues_its_run_and_says_how_the_last_attempt_ended(run: RunInfo) -> None:
    from mlflow.tracking import MlflowClient

    from rljob_trainer.loggers.mlflow_logger import MlflowLogger

    many = CONFIG | {f"field{number}": "x" * 600 for number in range(201)}  # more than one of its requests takes
    run = replace(run, config=many)
    client = MlflowClient(f"sqlite:///{run.directory / 'mlflow.db'}")
    attempts: list[tuple[dict[int, float], Status, str]] = [
        ({1: 0.25, 2: 0.5, 3: 0.5}, "stopped", "KILLED"), ({3: 0.75, 4: 1.0}, "done", "FINISHED"),
    ]  # fmt: skip
    for rewards, status, ended in attempts:
        attempt("mlflow", run, rewards, status)
        (found,) = runs(client)
        assert found.info.status == ended
    (found,) = runs(client)
    assert found.info.run_name == run.name
    history = client.get_metric_history(found.info.run_id, "reward/mean")
    assert [(each.step, each.value) for each in history] == [(1, 0.25), (2, 0.5), (3, 0.5), (3, 0.75), (4, 1.0)]
    for step in (1, 3):
        (path,) = run.directory.rglob(f"episodes/step-{step}.json")
        table = json.loads(path.read_text())
        (cells,) = table["data"]
        assert (table["columns"], cells[:-1], bounded(cells[-1])) == (list(COLUMNS), row(step)[:-1], True)
    params = found.data.params
    assert (params["model.path"], params["training.steps"], params["training.loggers"]) == ("m", "5", "['console']")
    assert len(params) == 3 + 201

    failing = MlflowLogger()
    failing.start(run)
    failing.finish("failed")
    assert [each.info.status for each in runs(client)] == ["FAILED"]


def runs(client: Any) -> list[Any]:
    return list(client.search_runs([each.experiment_id for each in client.search_experiments()]))


READ_TRACKIO = """
import json, sys, trackio
from trackio.sqlite_storage import SQLiteStorage
(found,) = trackio.Api().runs("tests")
print(json.dumps({"name": found.name, "config": found.config, "logs": SQLiteStorage.get_logs("tests", found.name)}))
"""


def test_trackio_continues_its_run(run: RunInfo) -> None:
    attempt("trackio", run, {1: 0.25, 2: 0.5, 3: 0.5}, "stopped")
    attempt("trackio", run, {3: 0.75, 4: 1.0}, "done")

    read = subprocess.run([sys.executable, "-c", READ_TRACKIO], capture_output=True, text=True, check=True)
    found = json.loads(read.stdout)
    assert found["name"] == "reverse-text-0e5a2c11"
    assert CONFIG.items() <= found["config"].items()
    tables = {each["step"]: each["episodes"]["_value"] for each in found["logs"] if "episodes" in each}
    assert list(tables) == [1, 3]
    (cells,) = tables[3]
    assert (list(cells)[:-1], list(cells.values())[:-1]) == (list(COLUMNS)[:-1], row(3)[:-1])
    assert bounded(cells["episode"], html.escape(MARKUP, quote=False))
    logged = [(each["step"], each["reward/mean"], each["actor/kl"]) for each in found["logs"] if "actor/kl" in each]
    assert sorted(logged) == [(1, 0.25, 0.5), (2, 0.5, 0.5), (3, 0.5, 0.5), (3, 0.75, 0.5), (4, 1.0, 0.5)]


def test_wandb_writes_each_attempt_as_the_same_run_and_says_how_it_ended(run: RunInfo) -> None:
    attempts: list[tuple[dict[int, float], Status, int]] = [
        ({1: 0.25, 2: 0.5, 3: 0.5}, "stopped", 255), ({3: 0.75, 4: 1.0}, "done", 0),
    ]  # fmt: skip
    for rewards, status, code in attempts:
        before = set(run.directory.rglob("*"))
        attempt("wandb", run, rewards, status)
        (file,) = set(run.directory.rglob("*.wandb")) - before
        records = wandb_records(file)
        (written,) = [each.run for each in records if each.WhichOneof("record_type") == "run"]
        assert (written.run_id, written.display_name, written.project) == (run.uid, run.name, run.project)
        assert items(written.config.update).items() >= CONFIG.items()
        lines = [items(each.history.item) for each in records if each.WhichOneof("record_type") == "history"]
        assert {line["step"]: line["reward/mean"] for line in lines if "reward/mean" in line} == rewards
        (table,) = (each for each in run.directory.rglob("episodes_*.table.json") if each not in before)
        content = json.loads(table.read_text())
        (cells,) = content["data"]
        assert (content["columns"], cells[:-1], bounded(cells[-1])) == (list(COLUMNS), row(min(rewards))[:-1], True)
        assert [each.exit.exit_code for each in records if each.WhichOneof("record_type") == "exit"] == [code]
        axes = {(each.metric.glob_name, each.metric.step_metric) for each in records if each.HasField("metric")}
        assert ("*", "step") in axes


def wandb_records(file: Path) -> list[Any]:
    """The protobuf records of wandb's own file, which is a LevelDB log behind a header of seven bytes."""
    from wandb.proto import wandb_internal_pb2

    record: Any = getattr(wandb_internal_pb2, "Record")  # noqa: B009 - its stubs name no message
    data, place, records, parts = file.read_bytes(), 7, [], b""
    block, header, whole, last = 32768, 7, 1, 4
    while place + header <= len(data):
        if block - place % block < header:  # the rest of a block that is too short for a header is padding
            place += block - place % block
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts += data[place + header : place + header + length]
        place += header + length
        if kind in (whole, last):
            records.append(record.FromString(parts))
            parts = b""
    return records


def items(found: Any) -> dict[str, Any]:
    return {each.key or "/".join(each.nested_key): json.loads(each.value_json) for each in found}


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_tracker_that_is_not_installed_names_the_field_and_the_extra(
    run: RunInfo, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "rljob_trainer.loggers.find_spec", lambda package: None if package == name else find_spec(package)
    )
    with pytest.raises(JobError, match=rf"pip install 'rljob-trainer\[{name}\]'") as raised:
        LoggerSet(["tensorboard", name], run)
    assert raised.value.field == "spec.training.loggers[1]"
    assert not (run.directory / "tensorboard").exists()
