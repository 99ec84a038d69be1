"""Runs the jobs with `rljob run`, and what each shows: traces of workers, metrics, and what environments noted."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from bench.agents import jobs
from bench.step.runs import Interval, covered, parse_objects
from rljob_trainer.local.machine import RLJOB, start_child
from rljob_trainer.progress import names
from rljob_trainer.progress.history import Line, read_metrics
from rljob_trainer.workers.trace import VARIABLE

BIN = 1.0
"""Seconds of a point in the picture."""


@dataclass(frozen=True, slots=True)
class Played:
    """The rollout of a step with 64 episodes in flight.

    seconds: from the first turn's begin to the last turn's end. busy: share of them in which the engine had requests.
    tokens: that the policy sampled. turn_tokens: of a turn, the mean.
    idle_metric: idle/engines of the step. busy_before: cores that other programs used in the second before.
    busy_of, playing: of each BIN of time, the share in which the engine was busy, and episodes that it generated for.
    """

    seconds: float
    busy: float
    tokens: int
    turn_tokens: float
    idle_metric: float
    busy_before: float
    busy_of: list[float]
    playing: list[float]


@dataclass(frozen=True, slots=True)
class Idle:
    """An environment process with idle episodes, over some seconds.

    lag_median, lag_largest: seconds that its event loop is late. cpu, host_cpu: cores of it and of the rollout host.
    """

    episodes: float
    lag_median: float
    lag_largest: float
    cpu: float
    host_cpu: float


@dataclass(frozen=True, slots=True)
class Single:
    """Steps of single turns.

    rollout, step: tokens a second, of the time of rollouts and of whole steps. tokens: of a step, the mean.
    """

    rollout: float
    step: float
    tokens: float
    busy_before: float


def sleeping(seconds: float, folder: Path) -> Played:
    note = folder / "turns.jsonl"
    lines, calls, before = _run(jobs.sleeping(seconds, note), folder)
    spans = [(call["start"], call["end"]) for call in calls if call["call"] == "generate"]
    turns: list[Interval] = [(start, end) for start, end in map(json.loads, note.read_text().splitlines())]
    window = min(start for start, _ in turns), max(end for _, end in turns)
    bins = _bins(window)
    (line,) = lines
    made = jobs.EPISODES * line[names.RESPONSE_LENGTH_MEAN]
    return Played(
        seconds=window[1] - window[0],
        busy=covered(window, spans) / (window[1] - window[0]),
        tokens=round(made),
        turn_tokens=made / len(turns),
        idle_metric=line[names.IDLE_ENGINES],
        busy_before=before,
        busy_of=[covered(each, spans) / (each[1] - each[0]) for each in bins],
        playing=[sum(covered(each, [turn]) for turn in turns) / (each[1] - each[0]) for each in bins],
    )


def idle(folder: Path, *, threads: bool) -> Idle:
    ((line,), _, _) = _run(jobs.idle(threads=threads), folder)
    found = {name: line[f"episode/{name}"] for name in ("idle", "lag_median", "lag_largest", "cpu", "host_cpu")}
    return Idle(found.pop("idle"), **found)


def single(folder: Path, *, environment: bool, steps: int) -> Single:
    """The first step does not count."""
    lines, _, before = _run(jobs.single(environment=environment, steps=1 + steps), folder)
    tokens = sum(128 * line[names.RESPONSE_LENGTH_MEAN] for line in lines[1:])
    rollout, step = (tokens / sum(line[name] for line in lines[1:]) for name in (names.TIME_ROLLOUT, names.TIME_STEP))
    return Single(rollout, step, tokens / steps, before)


def _bins(window: Interval) -> list[Interval]:
    start, end = window
    return [(start + i * BIN, min(end, start + (i + 1) * BIN)) for i in range(int((end - start) / BIN) + 1)]


def _run(job: dict[str, Any], folder: Path) -> tuple[list[Line], list[dict[str, Any]], float]:
    """Lines of its steps, the trace of its workers, and the cores that were busy before. Exits if it fails."""
    folder.mkdir(parents=True)
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    before = psutil.cpu_percent(interval=1.0) / 100 * (psutil.cpu_count() or 1)
    variables = {**os.environ, VARIABLE: str(folder / "trace"), "HF_HUB_OFFLINE": "1"}
    command: Sequence[str] = [*RLJOB, "run", str(folder / "job.yaml"), "--dir", str(folder / "run")]
    if code := start_child(command, folder / "log", variables).wait():
        sys.exit(f"rljob run ended with {code}: {(folder / 'log').read_text()[-2000:]}")
    calls = [call for file in (folder / "trace").glob("*.jsonl") for call in parse_objects(file.read_text())]
    return [line for line in read_metrics(folder / "run") if names.TIME_STEP in line], calls, before
