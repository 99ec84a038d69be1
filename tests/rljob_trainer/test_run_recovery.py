"""A run whose processes are killed one after the other: it ends as an undisturbed one, bit for bit.

The run that is disturbed has two engines, the other one.
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from rljob_trainer.checkpoint.export import choose_checkpoint, export_model
from rljob_trainer.checkpoint.manifest import MANIFEST, list_checkpoints, survey
from rljob_trainer.progress.history import Line, parse_lines
from rljob_trainer.progress.state import last_attempt, read_object
from rljob_trainer.volume import Volume, write_json
from tests.rljob_trainer.run_support import (
    Ended,
    Machine,
    exit_record,
    finish,
    interrupt,
    machine,
    steps,
    wait_for_step,
    wait_until,
    worker,
    write_job,
)

LONG: dict[str, Any] = {"steps": 100_000}
PROMPTS = 4
EVERY_STEPS = 7

DRIVER, RANK, ENGINE = "rljob_trainer.cli driver", "ray::RankHost", "ray::EngineHost"
KILLED = {"engine": ENGINE, "rewards": "ray::RolloutHost", "rank": RANK, "ray": "raylet/raylet"}
"""What the titles of a run's processes contain, in the order in which the story kills them after the driver."""
ENDS_THE_ATTEMPT = ("rank", "ray")


@dataclass
class Story:
    """before: the last step when each process was killed. attempts: the newest one when the run was beyond that."""

    run: Path
    before: dict[str, int]
    attempts: dict[str, int]
    ended: Ended
    calm: Path
    undisturbed: Ended

    def claim(self, name: str) -> dict[str, Any]:
        """Of the attempt that recovered from that loss."""
        return dict(json.loads(Volume(self.run).claim(self.attempts[name]).read_text()))

    def lines(self, attempt: int) -> dict[int, Line]:
        """What that attempt wrote, by step."""
        return {line["step"]: line for line in parse_lines(Volume(self.run).metrics(attempt).read_text())}


@contextmanager
def held(place: Machine, there: Callable[[], bool], near: Callable[[], bool]) -> Iterator[None]:
    """With its engines frozen, a run stays meanwhile where it needs them. near: it may come there now."""
    engines = [each for each in place.processes() if ENGINE in " ".join(each.cmdline())]
    _suspend(engines)
    while not there():
        _resume(engines)
        wait_until(near)
        _suspend(engines)
    try:
        yield
    finally:
        _resume(engines)


def _suspend(engines: list[psutil.Process]) -> None:
    for engine in engines:
        engine.suspend()
    time.sleep(2.0)  # where the machine is busy, a driver that needs none of them is elsewhere by then


def _resume(engines: list[psutil.Process]) -> None:
    for engine in engines:
        engine.resume()


@contextmanager
def lost(journal: Path) -> Iterator[None]:
    """It cannot be read meanwhile, as if it were damaged."""
    aside = journal.rename(journal.with_suffix(".aside"))
    yield
    aside.rename(journal)


def wait_for_attempt(run: Path, attempt: int) -> None:
    """A loss is not noticed at once: workers go on for a few steps without their raylet."""
    wait_until(lambda: last_attempt(Volume(run)) >= attempt)


def in_sync(run: Path) -> bool:
    """Between an update and its metrics; the phase stays until the next step begins."""
    return in_phase(run, "sync") and journal_of_this_step(run).exists()


def in_phase(run: Path, *names: str) -> bool:
    return (read_object(Volume(run).progress) or {}).get("phase") in names


def journal_of_this_step(run: Path) -> Path:
    """The newest attempt's, of the first step without a line."""
    return Volume(run).journal(last_attempt(Volume(run)), steps(run)[-1])


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("recovery")
    run, calm, before, attempts = folder / "run", folder / "calm", {}, {}
    job = write_job(
        folder, training=LONG, rollout={"deterministic": True, "enginesPerGpu": 2},
        recovery={"backoff": {"initial": "100ms"}}, checkpoint={"everySteps": EVERY_STEPS, "resume": "never"},
    )  # fmt: skip
    with machine() as place:
        process = place.start_run(job, "--dir", run)
        wait_for_step(run, EVERY_STEPS + 2, process)  # then there is a spare engine
        with held(place, lambda: in_sync(run), lambda: in_phase(run, "advantage", "update")):
            before["driver"], journal = steps(run)[-1], journal_of_this_step(run)
            worker(place, DRIVER).kill()
        with lost(journal):
            wait_for_step(run, before["driver"] + 3, process)
        attempts["driver"] = last_attempt(Volume(run))
        rolls_out = partial(in_phase, run, "rollout")
        for name, title in KILLED.items():
            before[name], attempt = steps(run)[-1], last_attempt(Volume(run))
            with held(place, rolls_out, rolls_out) if name == "rewards" else nullcontext():  # it has the step's groups
                worker(place, title).kill()
            if name in ENDS_THE_ATTEMPT:
                wait_for_attempt(run, attempt + 1)
            wait_for_step(run, before[name] + 3, process)
            attempts[name] = last_attempt(Volume(run))
        interrupt(process)
        ended = finish(process)
        length = f"training.steps={steps(run)[-1]}"
        undisturbed = place.rljob("run", job, "--dir", calm, "--set", length, "--set", "rollout.enginesPerGpu=1")
        yield Story(run, before, attempts, ended, calm, undisturbed)


def weights(run: Path, folder: Path) -> dict[str, torch.Tensor]:
    export_model(choose_checkpoint(run, None), folder / run.name, "float32")
    return load_file(folder / run.name / "model.safetensors")


def test_it_ends_as_asked_with_every_step_once(story: Story):
    assert story.ended.code == 76, story.ended.out
    assert "Traceback" not in story.ended.out
    assert steps(story.run) == list(range(1, steps(story.run)[-1] + 1))


def test_its_weights_equal_those_of_an_undisturbed_run_bit_for_bit(story: Story, tmp_path: Path):
    assert story.undisturbed.code == 0, story.undisturbed.out
    ours, theirs = weights(story.run, tmp_path), weights(story.calm, tmp_path)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def test_a_driver_takes_over_the_workers_and_finishes_the_step_without_a_second_update(story: Story):
    claim, killed = story.claim("driver"), story.before["driver"]
    attempt = story.attempts["driver"]
    assert claim["parent"] == attempt - 1
    assert claim["resumedStep"] == killed + 1, "the ranks' step, of which no line was written"
    lines = story.lines(attempt)
    assert min(lines) == killed + 1
    assert "reward/mean" in lines[killed + 1], "the ranks' mark says what the step's groups were"
    assert lines[killed + 1]["throughput/tokens_per_second"] > 0
    assert "time/update" not in lines[killed + 1]
    assert "time/rollout" not in lines[killed + 1], "weights of after the update make no groups for it"


def test_engine_and_scorer_are_replaced_while_the_driver_goes_on(story: Story):
    attempt = story.attempts["driver"]
    assert (story.attempts["engine"], story.attempts["rewards"]) == (attempt, attempt), exit_record(story.run, attempt)


def test_the_spare_takes_the_engines_place_though_a_former_driver_started_it(story: Story):
    log = [json.loads(line) for line in Volume(story.run).log(story.attempts["engine"]).read_text().splitlines()]
    assert [line["name"] for line in log if line["event"] == "engine_started"] == ["engine-2"]


def test_the_end_of_a_rank_ends_the_attempt_and_is_named(story: Story):
    record = exit_record(story.run, story.attempts["rewards"])
    assert (record["code"], record["reason"]) == (75, "RankLost")
    assert record["message"].startswith("rank-0 died")


@pytest.mark.parametrize("name", ENDS_THE_ATTEMPT)
def test_updates_since_the_checkpoint_are_replayed_from_the_journal(story: Story, name: str):
    claim, lines = story.claim(name), story.lines(story.attempts[name])
    assert claim["resumedFrom"] is not None
    assert story.before[name] - claim["resumedStep"] < 2 * EVERY_STEPS, "one checkpoint at most was under way"
    for step in range(claim["resumedStep"] + 1, story.before[name] + 1):
        assert lines[step]["recovery/replayed_updates"] == 1
        assert lines[step]["recovery/journaled_groups"] == PROMPTS


def test_each_restart_is_said(story: Story):
    assert story.ended.out.count("restarting the driver") >= 2
    assert story.ended.out.count("rebuilding the Ray cluster") >= 1


@pytest.mark.slow
def test_a_rank_that_hangs_in_a_collective_is_named_and_the_run_goes_on(tmp_path: Path):
    run = tmp_path / "run"
    with machine() as place:
        job = write_job(tmp_path, training=LONG, recovery={"hangAfter": "20s"})
        process = place.start_run(job, "--dir", run, "--ranks", "2")
        wait_for_step(run, 3, process)
        last = steps(run)[-1]
        frozen = next(each for each in place.processes() if RANK in " ".join(each.cmdline()))
        frozen.suspend()
        wait_for_step(run, last + 3, process)
        interrupt(process)
        ended = finish(process)
    assert ended.code == 76, ended.out
    assert steps(run) == list(range(1, steps(run)[-1] + 1))
    record = exit_record(run, 1)
    assert (record["code"], record["reason"]) == (75, "RankLost")
    assert re.fullmatch(r"rank-[01] has not answered for \d+ s", record["message"])


@pytest.mark.slow
def test_living_workers_save_at_once_where_the_newest_checkpoint_was_lost(tmp_path: Path):
    run = tmp_path / "run"
    volume = Volume(run)
    with machine() as place:
        process = place.start_run(write_job(tmp_path, training=LONG), "--dir", run)
        wait_for_step(run, 2, process)
        write_json(volume.request, {"id": "one", "checkpoint": True, "stop": False})
        wait_until(lambda: list_checkpoints(volume))
        (lost,) = list_checkpoints(volume)
        (lost.path / MANIFEST).unlink()
        wait_for_step(run, lost.manifest.step + 2, process)
        worker(place, DRIVER).kill()
        wait_until(lambda: list_checkpoints(volume))
        (found,) = [each for each in survey(volume) if each.path == lost.path]
        assert found.standing == "unfinished", "it is left for whoever restores it"
        interrupt(process)
        ended = finish(process)
    assert ended.code == 76
    assert "checkpoint_skipped" in ended.out
    assert [each.manifest.attempt for each in list_checkpoints(volume)] == [2, 2]
