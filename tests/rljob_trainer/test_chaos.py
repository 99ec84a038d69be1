"""A short, seeded piece of chaos: processes of a run die or freeze, and nothing of it shows in the weights."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from e2e.chaos.faults import Fault
from e2e.chaos.jobs import JOBS
from e2e.chaos.trial import disturbed, undisturbed, write_job
from e2e.chaos.weights import differing
from tests.rljob_trainer.run_support import machine

STEPS = 12
FAULTS = (
    Fault("reward process", "SIGKILL", "rollout"),
    Fault("driver", "SIGKILL", "update"),
)


def test_a_run_that_loses_its_processes_ends_with_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    deterministic = next(job for job in JOBS if job.name == "deterministic")
    job = write_job(tmp_path / "job.yaml", deterministic.document(STEPS))
    with machine() as place, ThreadPoolExecutor() as pool:
        monkeypatch.setenv("RLJOB_TEST", place.marker)
        undisturbed_run = pool.submit(undisturbed, job, tmp_path / "calm")
        trial = disturbed(job, tmp_path / "disturbed", iter(FAULTS), random.Random(1))
        calm = undisturbed_run.result()
    assert (calm.code, trial.code) == (0, 0), trial.output
    assert [each.fault for each in trial.struck] == list(FAULTS), "each has struck"
    assert [line["step"] for line in trial.history] == list(range(1, STEPS + 1)), "each step once"
    assert differing(tmp_path / "calm", tmp_path / "disturbed") == []
