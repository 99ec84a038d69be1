"""A short, seeded piece of chaos: processes of a run die or freeze, and nothing of it shows in the weights."""

import random
from pathlib import Path

import psutil

from e2e.chaos.faults import Fault
from e2e.chaos.jobs import JOBS
from e2e.chaos.trial import disturbed, undisturbed, write_job
from e2e.chaos.weights import differing

STEPS = 24
FAULTS = (
    Fault("reward process", "SIGKILL", "rollout"),
    Fault("driver", "SIGKILL", "update"),
    Fault("engine", "SIGSTOP", "rollout", continued_after=1.0),
    Fault("rank", "SIGKILL", "saving"),
)


def test_a_run_that_loses_its_processes_ends_with_the_same_weights(tmp_path: Path):
    before = set(psutil.pids())
    deterministic = next(job for job in JOBS if job.name == "deterministic")
    job = write_job(tmp_path / "job.yaml", deterministic.document(STEPS))
    calm = undisturbed(job, tmp_path / "calm")
    trial = disturbed(job, tmp_path / "disturbed", iter(FAULTS), random.Random(1))
    assert (calm.code, trial.code) == (0, 0), trial.output
    assert [each.fault for each in trial.struck] == list(FAULTS), "each has struck"
    assert [line["step"] for line in trial.history] == list(range(1, STEPS + 1)), "each step once"
    assert differing(tmp_path / "calm", tmp_path / "disturbed") == []
    assert not [process for process in _new(before) if "rljob_trainer" in process or "ray::" in process]


def _new(before: set[int]) -> list[str]:
    """Command lines of processes that were not there before."""
    found = []
    for process in psutil.process_iter():
        if process.pid not in before:
            try:
                found.append(" ".join(process.cmdline()))
            except psutil.Error:
                continue
    return found
