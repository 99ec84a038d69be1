"""A short, seeded piece of chaos: processes of a run die, and nothing of it shows in the weights."""

import json
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import psutil
import pytest

from e2e.chaos import trial as chaos_trial
from e2e.chaos.__main__ import judge
from e2e.chaos.faults import Fault, draw
from e2e.chaos.jobs import JOBS, SUPERVISED_STEPS
from e2e.chaos.steps import Recovery, recovery_in
from e2e.chaos.traces import Traces
from e2e.chaos.trial import Struck, Trial, _strike, _Watch, disturbed, undisturbed, write_job
from e2e.chaos.weights import differing
from rljob_trainer.attempt.claim import claim
from rljob_trainer.progress.history import Line
from rljob_trainer.volume import Volume, write_json

DETERMINISTIC = next(job for job in JOBS if job.name == "deterministic")
STEPS = 16
SEED, FAULTS = 7, 3
"""Kills of a rank, a driver and an engine."""
OF_GAMES = [
    Fault("environment process", "SIGKILL", "rollout"),
    Fault("environment process", "SIGSTOP", "rollout"),
    Fault("scorer", "SIGKILL", "rollout"),
]
"""Beside those, in the job whose episodes have two turns."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deterministic", "adapter", "critic", "agents"])
def test_a_run_that_loses_its_processes_ends_with_the_same_weights(name: str, tmp_path: Path):
    dice = random.Random(SEED)
    chosen = next(job for job in JOBS if job.name == name)
    faults = [draw(dice) for _ in range(FAULTS)] + (OF_GAMES if chosen.environment else [])
    job = write_job(tmp_path / "job.yaml", chosen.document(STEPS))
    with ThreadPoolExecutor() as pool:
        undisturbed_run = pool.submit(undisturbed, job, tmp_path / "calm")
        trial = disturbed(job, tmp_path / "disturbed", iter(faults), dice)
        calm = undisturbed_run.result()
    assert (calm.code, trial.code) == (0, 0), trial.output
    assert [each.fault for each in trial.struck] == faults, "each has struck"
    assert [line["step"] for line in trial.history] == list(range(1, SUPERVISED_STEPS + STEPS + 1)), "each step once"
    assert differing(tmp_path / "calm", tmp_path / "disturbed") == []
    assert (calm.left, trial.left) == ([], [])


@pytest.mark.slow
def test_a_run_that_does_not_miss_a_frozen_driver_fails_the_verdict(tmp_path: Path):
    document = DETERMINISTIC.document(STEPS)
    document["spec"]["recovery"]["hangAfter"] = "1h"
    fault = Fault("driver", "SIGSTOP", "any")
    trial = disturbed(write_job(tmp_path / "job.yaml", document), tmp_path / "run", iter([fault]), random.Random(0))
    assert [(each.fault, each.next_update, each.missed) for each in trial.struck] == [(fault, inf, False)]
    (wrong,) = judge(DETERMINISTIC, [], trial)
    assert f"did not miss a frozen process within 30 s: {fault}" in wrong


@pytest.fixture
def processes() -> Iterator[Callable[[], "subprocess.Popen[bytes]"]]:
    """Starts one that does nothing."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen(["sleep", "1000"]))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()


@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "ends soon"])
def test_a_frozen_process_that_nobody_misses_while_the_run(
    ends: bool, processes: Callable[[], "subprocess.Popen[bytes]"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run, scorer, volume, trial = processes(), processes(), Volume(tmp_path), Trial(tmp_path)
    write_lines(volume, 3)

    def inject(*_: object) -> psutil.Process:
        scorer.send_signal(signal.SIGSTOP)
        write_lines(volume, 4)
        if ends:
            run.kill()
            run.wait()
        return psutil.Process(scorer.pid)

    monkeypatch.setattr(chaos_trial, "inject", inject)
    monkeypatch.setattr(chaos_trial, "MISSED_SECONDS", 0.1)
    fault = Fault("scorer", "SIGSTOP", "any")
    with Traces() as traces:
        watch = _Watch(volume, run, traces)
        struck = _strike(trial, fault, watch, psutil.Process(run.pid), random.Random(0))
    assert struck == (None if ends else Struck(fault, True, 4, inf, inf, 0, 0, missed=False))
    assert trial.injected == 1


def lines(*steps: tuple[int, int]) -> list[Line]:
    """Of (attempt, step), a second each."""
    return [{"attempt": attempt, "step": step, "time": float(at)} for at, (attempt, step) in enumerate(steps)]


RECOVERIES: dict[str, tuple[list[tuple[int, int]], int, dict[str, Any], Recovery | None]] = {
    "a step that had not begun": ([(1, 1), (1, 2)], 1, {}, Recovery(1.0, 1.0, 0, 0)),
    "one whose update had": ([(1, 1), (1, 2), (1, 3)], 1, {"updating": True}, Recovery(2.0, 2.0, 0, 0)),
    "one step again": ([(1, 1), (1, 2), (2, 2), (2, 3)], 2, {}, Recovery(2.0, 3.0, 1, 0)),
    "no step yet": ([(1, 1), (1, 2)], 2, {}, None),
    "steps of a driver whose Ray is gone": ([(1, 1), (1, 2), (1, 3)], 1, {"lost": 1}, None),
    "the next one's": ([(1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (2, 4)], 1, {"lost": 1}, Recovery(3.0, 5.0, 2, 0)),
    "in an update": ([(1, 1), (1, 2), (2, 3)], 1, {"lost": 1, "updating": True}, Recovery(2.0, 2.0, 0, 0)),
}
"""Lines, how many were there before the fault, what is known of it, and the recovery."""


@pytest.mark.parametrize("what", RECOVERIES)
def test_a_recovery_is_counted_from(what: str):
    steps, known, options, expected = RECOVERIES[what]
    assert recovery_in(lines(*steps), known, **{"updating": False, "lost": None} | options) == expected


@pytest.mark.parametrize(
    ("fault", "costs"),
    [
        (Fault("ray head", "SIGKILL", "any"), True),
        (Fault("ray head", "SIGSTOP", "any"), False),
        (Fault("gcs", "SIGSTOP", "any"), True),
        (Fault("raylet", "SIGSTOP", "any", 3.0), False),
        (Fault("raylet", "SIGKILL", "any"), True),
        (Fault("driver", "SIGKILL", "any"), False),
    ],
)
def test_a_fault_costs_ray(fault: Fault, costs: bool):
    assert fault.costs_ray == costs


def write_lines(volume: Volume, steps: int) -> None:
    write_json(volume.claim(1), {"attempt": 1})
    path = volume.metrics(1)
    path.parent.mkdir(exist_ok=True)
    written = ({"step": step, "time": float(step), "time/step": 0.1, "stage": "rl"} for step in range(1, steps + 1))
    path.write_text("".join(f"{json.dumps(line)}\n" for line in written))


def test_a_run_that_does_not_go_on_fails_the_verdict(tmp_path: Path):
    fault = Fault("driver", "SIGKILL", "any")
    trial = Trial(tmp_path, struck=[Struck(fault, True, 4, inf, inf, 0, 0)], injected=1)
    (wrong,) = judge(DETERMINISTIC, [], trial)
    assert f"did not go on within 240 s after {fault}" in wrong


@pytest.mark.parametrize(("injected", "wrong"), [(0, ["took 2 drivers for 0 faults"]), (1, [])])
def test_a_driver_is_paid_for_by_a_fault_that_came_too_late_to_strike(tmp_path: Path, injected: int, wrong: list[str]):
    """A driver that is killed in the last save: the next one finishes the run without a new step."""
    write_lines(Volume(tmp_path), 4)
    claim(Volume(tmp_path), 2)
    trial = Trial(tmp_path, code=0, injected=injected)
    calm = Trial(tmp_path, code=0)
    job = replace(DETERMINISTIC, problems=lambda *_: [])
    assert [problem.split(" ", 1)[1] for problem in judge(job, [calm], trial)] == wrong
