"""One run of either trainer, in processes of its own, and what a step of it took."""

import json
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

import psutil

from bench.step.shapes import Shape
from rljob_trainer.local.machine import RLJOB, start_child
from rljob_trainer.progress import names
from rljob_trainer.progress.history import parse_lines, read_metrics
from rljob_trainer.workers.trace import VARIABLE

LOOK_SECONDS = 1.0

Interval = tuple[float, float]

_WORK = {"update": ("prepare", "update"), "sync": ("send_weights", "load_bucket", "complete_update", "score_probes")}
"""Calls of workers, by what they are for; generation is timed by the driver, for its call waits for scores too."""


@dataclass(frozen=True, slots=True)
class Steps:
    """One run without its warm-up.

    seconds: from the end of one step to the end of the next; of vLLM alone, of the responses of a step. tokens: mean
        length of the responses.
    parts: mean seconds of a step in its phases (time/...), and for ours in calls of workers (work/...).
    peak_bytes: of all processes of the run, pages that several share counted in each.
    busy_before: cores that were busy in the second before it, with other work.
    """

    seconds: list[float]
    tokens: float
    peak_bytes: int
    busy_before: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return median(self.seconds)


def ours(shape: Shape, job: Path, folder: Path) -> Steps:
    trace = folder.with_suffix(".trace")
    trace.mkdir(parents=True)
    busy = _busy_cores()
    peak = _run([*RLJOB, "run", str(job), "--dir", str(folder)], folder.with_suffix(".log"), {VARIABLE: str(trace)})
    lines = [line for line in read_metrics(folder) if names.TIME_STEP in line]
    counted = lines[shape.warm_up :]
    windows = [(before["time"], after["time"]) for before, after in pairwise(lines[shape.warm_up - 1 :])]
    calls = [call for file in trace.glob("*.jsonl") for call in parse_objects(file.read_text())]
    phases = {name: mean(line.get(name, 0.0) for line in counted) for name in names.PHASE_TIMES}
    return Steps(
        seconds=[end - start for start, end in windows],
        tokens=mean(line[names.RESPONSE_LENGTH_MEAN] for line in counted),
        peak_bytes=peak,
        busy_before=busy,
        parts={name: seconds for name, seconds in phases.items() if seconds} | work(calls, windows),
    )


def trl(shape: Shape, spec: Path, model: Path, folder: Path) -> Steps:
    """spec: the resolved one, as JSON."""
    folder.mkdir(parents=True)
    output = folder / "steps.jsonl"
    command = [sys.executable, "-m", "bench.step.trl_steps", str(spec), str(model), str(output)]
    busy = _busy_cores()
    peak = _run(command, folder.with_suffix(".log"), {})
    lines = list(parse_lines(output.read_text()))
    counted = lines[shape.warm_up :]
    seconds = [after["time"] - before["time"] for before, after in pairwise(lines[shape.warm_up - 1 :])]
    return Steps(
        seconds=seconds,
        tokens=mean(line["length"] for line in counted),
        peak_bytes=peak,
        busy_before=busy,
        parts=trl_phases(counted, seconds),
    )


def vllm_alone(spec: Path, model: Path, folder: Path) -> Steps:
    """spec: the resolved one, as JSON."""
    folder.mkdir(parents=True)
    output = folder / "times.jsonl"
    command = [sys.executable, "-m", "bench.step.vllm_alone", str(spec), str(model), str(output)]
    busy = _busy_cores()
    peak = _run(command, folder.with_suffix(".log"), {})
    lines = parse_objects(output.read_text())[1:]
    return Steps(
        seconds=[line["seconds"] for line in lines],
        tokens=mean(line["length"] for line in lines),
        peak_bytes=peak,
        busy_before=busy,
    )


def check_length(shape: Shape, name: str, run: Steps) -> None:
    """Exits where the run has made shorter responses than the others: it had less to do."""
    if run.tokens != shape.tokens:
        sys.exit(
            f"{shape.name}, {name}: responses have {run.tokens:g} tokens in the mean, not {shape.tokens}, so its steps"
            " cannot be compared: does write_model's model end responses?"
        )


def trl_phases(lines: Sequence[dict[str, Any]], seconds: Sequence[float]) -> dict[str, float]:
    """TRL's seconds of a step in the names that ours have. lines: of Clock, one for each of `seconds`."""
    prepare, rollout, rewards = (mean(line[part] for line in lines) for part in ("prepare", "rollout", "rewards"))
    return {
        names.TIME_ROLLOUT: rollout,
        names.TIME_REWARDS: rewards,
        names.TIME_ADVANTAGE: prepare - rollout - rewards,
        names.TIME_UPDATE: mean(seconds) - prepare,
    }


def parse_objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def work(calls: Sequence[dict[str, Any]], windows: Sequence[Interval]) -> dict[str, float]:
    """Mean seconds of a step in which workers updated or synced, and in which no worker worked at all.

    windows: start and end of each step, unix seconds like those of the calls.
    """
    totals: dict[str, float] = defaultdict(float)
    for window in windows:
        for name, methods in _WORK.items():
            totals[f"work/{name}"] += covered(window, [_interval(call) for call in calls if call["call"] in methods])
        busy = covered(window, [_interval(call) for call in calls])
        totals["work/none"] += window[1] - window[0] - busy
    return {name: seconds / len(windows) for name, seconds in totals.items()}


def covered(window: Interval, intervals: Iterable[Interval]) -> float:
    """Seconds of the window in which at least one interval runs."""
    total, reached = 0.0, window[0]
    for start, end in sorted(intervals):
        begin, stop = max(start, reached), min(end, window[1])
        if stop > begin:
            total += stop - begin
            reached = stop
    return total


def _interval(call: dict[str, Any]) -> Interval:
    return call["start"], call["end"]


def _run(command: Sequence[str], log: Path, variables: dict[str, str]) -> int:
    """Returns the peak memory of the process and all below it. Exits, showing the log's end, where it fails.

    The process gets SIGTERM when this one dies.
    """
    environment = {**psutil.Process().environ(), **variables, "HF_HUB_OFFLINE": "1"}
    peaks: dict[int, int] = {}
    process = start_child(command, log, environment, orphaned=signal.SIGTERM)
    while process.poll() is None:
        for pid in _tree(process.pid):
            peaks[pid] = max(peaks.get(pid, 0), _peak_bytes(pid))
        time.sleep(LOOK_SECONDS)
    if process.returncode:
        sys.exit(f"{command[0]} ended with {process.returncode}: {log.read_text()[-2000:]}")
    return sum(peaks.values())


def _busy_cores() -> float:
    return float(psutil.cpu_percent(interval=1.0)) / 100 * (psutil.cpu_count() or 1)


def _tree(pid: int) -> list[int]:
    with suppress(psutil.NoSuchProcess):
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return []


def _peak_bytes(pid: int) -> int:
    """The kernel's high-water mark of a process's resident memory."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
