"""A short, seeded piece of chaos: processes of a run die, and nothing of it shows in the weights."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from e2e.chaos.faults import draw
from e2e.chaos.jobs import JOBS, SUPERVISED_STEPS
from e2e.chaos.trial import disturbed, undisturbed, write_job
from e2e.chaos.weights import differing

STEPS = 16
SEED, FAULTS = 7, 3
"""Kills of a rank, a driver and an engine."""


def test_a_run_that_loses_its_processes_ends_with_the_same_weights(tmp_path: Path):
    dice = random.Random(SEED)
    faults = [draw(dice) for _ in range(FAULTS)]
    deterministic = next(job for job in JOBS if job.name == "deterministic")
    job = write_job(tmp_path / "job.yaml", deterministic.document(STEPS))
    with ThreadPoolExecutor() as pool:
        undisturbed_run = pool.submit(undisturbed, job, tmp_path / "calm")
        trial = disturbed(job, tmp_path / "disturbed", iter(faults), dice)
        calm = undisturbed_run.result()
    assert (calm.code, trial.code) == (0, 0), trial.output
    assert [each.fault for each in trial.struck] == faults, "each has struck"
    assert [line["step"] for line in trial.history] == list(range(1, SUPERVISED_STEPS + STEPS + 1)), "each step once"
    assert differing(tmp_path / "calm", tmp_path / "disturbed") == []
    assert (calm.left, trial.left) == ([], [])
