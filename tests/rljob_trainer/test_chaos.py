"""A short, seeded piece of chaos: processes of a run die, and nothing of it shows in the weights."""

import random
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path

import pytest

from e2e.chaos import trial as chaos_trial
from e2e.chaos.__main__ import judge
from e2e.chaos.faults import Fault, draw
from e2e.chaos.jobs import JOBS, SUPERVISED_STEPS
from e2e.chaos.report import percentiles
from e2e.chaos.trial import disturbed, undisturbed, write_job
from e2e.chaos.weights import differing

DETERMINISTIC = next(job for job in JOBS if job.name == "deterministic")
STEPS = 16
SEED, FAULTS = 7, 3
"""Kills of a rank, a driver and an engine."""


def test_a_run_that_loses_its_processes_ends_with_the_same_weights(tmp_path: Path):
    dice = random.Random(SEED)
    faults = [draw(dice) for _ in range(FAULTS)]
    job = write_job(tmp_path / "job.yaml", DETERMINISTIC.document(STEPS))
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
def test_a_run_that_does_not_go_on_after_a_fault_fails_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chaos_trial, "RECOVERY_SECONDS", 60.0)  # long enough for a start
    document = DETERMINISTIC.document(STEPS)
    document["spec"]["recovery"]["hangAfter"] = "1h"
    fault = Fault("driver", "SIGSTOP", "any")
    trial = disturbed(write_job(tmp_path / "job.yaml", document), tmp_path / "run", iter([fault]), random.Random(0))
    assert [(each.fault, each.next_update, each.next_step) for each in trial.struck] == [(fault, inf, inf)]
    (wrong,) = judge(DETERMINISTIC, [], trial)
    assert f"did not go on within 240 s after {fault}" in wrong


def test_percentiles_of_times_that_may_be_endless():
    assert percentiles([1.0, 2.0, 3.0, inf]) == (2.0, inf)
    assert percentiles([inf, inf]) == (inf, inf)
