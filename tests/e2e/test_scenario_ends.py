"""How scenarios judge a job's attempts and its end, by the files of a made-up volume, its status and its events."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from e2e.cluster.access import Access
from e2e.scenarios.job import FAILURE_CONDITIONS, SUCCESS_CONDITIONS, Job


@dataclass(frozen=True)
class Volume(Access):
    """A cluster with one pod, in which `cat` shows these files, and a job that has ended."""

    files: Mapping[str, str] = field(default_factory=dict)
    status: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[str, ...] = ()

    def kubectl(self, *arguments: str, objects: str = "") -> str:
        match arguments[1:]:
            case ["exec", *_, "cat", file]:
                return self.files[file.removeprefix("/checkpoints/")]
            case ["exec", *_, "sh", "-c", _]:
                named = [(name, text) for name, text in self.files.items() if name.startswith("metrics/")]
                return "".join(f"/checkpoints/{name} {line}\n" for name, text in named for line in text.splitlines())
            case ["get", "rljob", *_]:
                return json.dumps({"status": self.status})
            case ["get", "events", *_]:
                return json.dumps({"items": [{"reason": each, "eventTime": "2026"} for each in self.events]})
            case _:
                return "pod/head"


def resumed(log: str = "", **claim: object) -> Job:
    files = {"attempts/2.json": json.dumps({"parent": 1, **claim}), "logs/a2.jsonl": log}
    return Job(Volume(files=files), "namespace")


def test_an_attempt_resumes_from_a_checkpoint_that_is_no_older():
    resumed(resumedFrom="step-14-a1", resumedStep=14).resumes(attempt=2, after=12)
    with pytest.raises(AssertionError, match="after step 12"):
        resumed(resumedFrom="step-10-a1", resumedStep=10).resumes(attempt=2, after=12)
    with pytest.raises(AssertionError, match="where its checkpoint ends"):
        resumed(resumedFrom="step-12-a1", resumedStep=13).resumes(attempt=2, after=12)
    with pytest.raises(AssertionError, match="does not go on with attempt 1"):
        resumed(parent=None, resumedFrom=None, resumedStep=0).resumes(attempt=2, after=0)


def test_an_attempt_takes_ranks_over():
    said = json.dumps({"event": "ranks_taken_over", "step": 13})
    resumed(said, resumedFrom="step-12-a1", resumedStep=13).takes_over(attempt=2, after=13)
    with pytest.raises(AssertionError, match="took no ranks over"):
        resumed(resumedFrom="step-12-a1", resumedStep=12).takes_over(attempt=2, after=12)


def line(step: int, mean: float = 0.12344, **more: float) -> dict[str, Any]:
    rewards = {"reward/min": 0.0, "reward/mean": mean, "reward/max": 0.5}
    return {"step": step, "stage": "rl", "time": 1.0, "time/step": 1.0, **rewards, **more}


LAST = line(70, **{"validation/reward": 0.2})

SUCCEEDED: dict[str, Any] = {
    "phase": "Succeeded",
    "attempt": 2,
    "progress": {"step": 70, "totalSteps": 70, "reward": 0.1234, "validationReward": 0.2},
    "checkpoint": {"step": 70},
    "conditions": [{"type": kind, "status": word} for kind, word in SUCCESS_CONDITIONS.items()],
}


def succeeded(*lines: dict[str, Any], checkpoint_step: int = 68, **status: Any) -> Job:
    """Its second attempt began after step 68, of a checkpoint or of ranks that were further than theirs.

    lines: of its metrics; both steps, if none are given.
    """
    files = {
        "attempts/2.json": json.dumps({"parent": 1, "resumedFrom": f"step-{checkpoint_step}-a1", "resumedStep": 68}),
        "metrics/a1.jsonl": json.dumps(line(69, 0.9)),
        "metrics/a2.jsonl": "\n".join(map(json.dumps, lines or (line(69), LAST))),
    }
    volume = Volume(files=files, status={**SUCCEEDED, **status}, events=("RankLost", "Completed"))
    return Job(volume, "namespace")


def test_a_job_succeeds_with_a_reward_after_its_loss_was_told():
    assert succeeded().succeeds_after("RankLost", "RayLost") == SUCCEEDED
    with pytest.raises(AssertionError, match="no event tells of DriverLost"):
        succeeded().succeeds_after("DriverLost")
    for other in ({"checkpoint": {"step": 68}}, {"checkpoint": None}, {"conditions": SUCCEEDED["conditions"][1:]}):
        with pytest.raises(AssertionError, match="missing"):
            succeeded(**other).succeeds()
    for missing in ("reward", "step"):
        with pytest.raises(AssertionError, match="missing"):
            succeeded(progress={**SUCCEEDED["progress"], missing: None}).succeeds()


@pytest.mark.parametrize("other", [{"reward": 0.9}, {"validationReward": None}], ids=str)
def test_a_reward_that_is_not_the_last_steps_is_none_of_success(other):
    with pytest.raises(AssertionError, match="the status says"):
        succeeded(progress={**SUCCEEDED["progress"], **other}).succeeds()


@pytest.mark.parametrize("lines", [(LAST,), (line(68), line(69), LAST), (line(69), line(69), LAST)], ids=len)
def test_an_attempt_that_leaves_steps_out_or_repeats_them_is_none_of_success(lines):
    with pytest.raises(AssertionError, match="after step 68 attempt 2 took the steps"):
        succeeded(*lines).succeeds()


def test_a_step_of_ranks_that_were_taken_over_may_be_written_down_late():
    succeeded(line(68), line(69), LAST, checkpoint_step=67).succeeds()
    succeeded(line(69), LAST, checkpoint_step=67).succeeds()


def test_rewards_that_the_job_cannot_give_are_none_of_success():
    for wrong in ({"reward/max": 1.5}, {"reward/min": float("nan")}, {"reward/min": 0.3}):
        with pytest.raises(AssertionError, match="cannot be"):
            succeeded(line(69), LAST | wrong).succeeds()
    succeeded(line(69), LAST | {"reward/max": 1.5}, rewardModels=[{"name": "rm"}]).succeeds()


def test_a_job_fails_with_its_conditions_and_an_event():
    said = [{"type": kind, "status": word} for kind, word in FAILURE_CONDITIONS.items()]
    conditions = [each | {"reason": "Reward", "message": "no"} for each in said]
    status: dict[str, Any] = {"phase": "Failed", "conditions": conditions}
    job = Job(Volume(status=status, events=("Reward",)), "namespace")
    assert job.fails("Reward")["message"] == "no"
    with pytest.raises(AssertionError, match="failed otherwise"):
        job.fails("Data")
    with pytest.raises(AssertionError, match="missing"):
        job.fails("Reward", saved=False)
    for kind in ("Stalled", "CheckpointAvailable"):
        less = {**status, "conditions": [each for each in conditions if each["type"] != kind]}
        with pytest.raises(AssertionError, match="missing"):
            Job(Volume(status=less, events=("Reward",)), "namespace").fails("Reward")
