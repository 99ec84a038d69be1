"""What checkpoint.resume begins, and which attempts go on with that: a restart never costs the run."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from rljob_trainer.attempt.claim import claim, record_resume
from rljob_trainer.attempt.origin import Origin, find_origin
from rljob_trainer.checkpoint.retention import Pruning
from rljob_trainer.errors import DataError, FencedError
from rljob_trainer.rank.training_state import RankStates, TrainingState
from rljob_trainer.volume import Volume
from tests.rljob_trainer.checkpoint_support import begin_attempt, checkpoints_of, read_claimed, resumption_of

ELSEWHERE = "elsewhere"
"""Stands for the path of another run's checkpoint, of step 4."""

STORIES = {
    "never twice in one start": ([("never", "A"), ("never", "A")], [0, 1]),
    "never in two starts": ([("never", "A"), ("never", "B"), ("never", "B")], [0, 0, 2]),
    "never in a start, auto in the next": ([("never", "A"), ("auto", "B")], [0, 1]),
    "auto, then never": ([("auto", "A"), ("never", "B")], [0, 0]),
    # The setting of an RLJob can change while it is suspended; its uid stays.
    "never again after auto": ([("never", "A"), ("auto", "A"), ("never", "A"), ("never", "A")], [0, 1, 0, 3]),
    "never again after a path": ([("never", "A"), (ELSEWHERE, "A"), ("never", "A")], [0, 4, 0]),
    "a path twice in one start": ([(ELSEWHERE, "A"), (ELSEWHERE, "A")], [4, 5]),
    "a path in two starts": ([(ELSEWHERE, "A"), (ELSEWHERE, "B")], [4, 5]),
    "a path after never": ([("never", "A"), (ELSEWHERE, "A"), (ELSEWHERE, "A")], [0, 4, 6]),
    "auto after a path": ([(ELSEWHERE, "A"), ("auto", "A")], [4, 5]),
    "never of an older operator, which names no start": ([("never", ""), ("never", "")], [0, 0]),
}
"""Attempts, each with its checkpoint.resume and who asked for the start; the steps that they go on from.

Attempt n saves step n, or n + 4 after it began elsewhere.
"""


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    return Volume(tmp_path / "run")


@pytest.fixture
def elsewhere(tmp_path: Path) -> str:
    return str(begin_attempt(Volume(tmp_path / "other"), 1).save(4).path)


@pytest.mark.parametrize("story", STORIES)
def test_an_attempt_goes_on_from(volume: Volume, elsewhere: str, story: str):
    attempts, expected = STORIES[story]
    found = []
    for number, (setting, start_id) in enumerate(attempts, start=1):
        resume = elsewhere if setting == ELSEWHERE else setting
        attempt = begin_attempt(volume, number, start_id, resume=resume, keepLast=9)
        step = attempt.found.manifest.step if attempt.found else 0
        attempt.save(number + 4 if step >= 4 else number)
        found.append(step)
    assert found == expected


def test_an_attempt_that_died_before_it_decided_changes_nothing(volume: Volume):
    begin_attempt(volume, 1, "A", resume="auto").save(1)
    claim(volume, 2)  # never, of start B
    assert begin_attempt(volume, 3, "B", resume="never").found is None
    claim(volume, 4)
    assert resumption_of(volume, "B", resume="never").continues()
    assert resumption_of(volume, "A", resume="auto").find() is None, "the new run has no checkpoint yet"


def test_a_run_that_begins_anew_says_what_it_sets_aside(volume: Volume):
    first = begin_attempt(volume, 1, "A")
    first.save(1)
    first.save(2)
    with capture_logs() as logs:
        begin_attempt(volume, 2, "B", resume="never")
        begin_attempt(volume, 3, "B", resume="never")
    said = [line["checkpoints_set_aside"] for line in logs if line["event"] == "new_run_started"]
    assert said == [2], "once: the second goes on"


def test_no_retry_mends_a_damaged_checkpoint_that_was_named(volume: Volume, elsewhere: str):
    (Path(elsewhere) / "ranks/__1_0.distcp").unlink()
    with pytest.raises(DataError, match=r"/step-4-a1: .*__1_0.distcp is missing; restore it"):
        begin_attempt(volume, 1, "A", resume=elsewhere)


def test_the_claim_says_for_whom_the_run_began_anew(volume: Volume):
    for number, resume in enumerate(("never", "never", "auto"), start=1):
        begin_attempt(volume, number, "A", resume=resume)
    assert [read_claimed(volume, number)["freshFor"] for number in (1, 2, 3)] == ["A", "A", None]


class LivingRanks:
    """They hold step 7. asked: whether anybody wanted to take them over."""

    asked = False

    def take_over(self) -> RankStates:
        self.asked = True
        return RankStates(TrainingState(7, "digest", "rl", {}, {}, {}, 0))


def origin_of(volume: Volume, number: int, ranks: LivingRanks, start_id: str, resume: str) -> Origin:
    """Where an attempt continues that finds living ranks."""
    resumption = resumption_of(volume, start_id, resume)
    origin = find_origin(volume, number, claim(volume, number), resumption, ranks)  # type: ignore[arg-type]
    checkpoints_of(volume, number, resumption.spared, resume=resume).prune_if_possible()
    return origin


@pytest.mark.parametrize("resume", ["auto", "never", ELSEWHERE])
@pytest.mark.parametrize("saved", [False, True])
def test_a_lost_driver_costs_no_update_whatever_began_the_run(volume: Volume, elsewhere: str, resume: str, saved: bool):
    resume = elsewhere if resume == ELSEWHERE else resume
    first = begin_attempt(volume, 1, "A", resume=resume)
    if saved:
        first.save(6)
    origin = origin_of(volume, 2, LivingRanks(), "A", resume)
    assert (origin.step, origin.durable_step) == (7, 6 if saved else 0)
    written = read_claimed(volume, 2)
    assert (written["parent"], written["resumedStep"]) == (1, 7)
    assert resumption_of(volume, "A", resume=resume).continues(), "the take-over is of the same run"


@pytest.mark.parametrize("resume", ["never", ELSEWHERE])
def test_ranks_of_another_run_are_not_taken_over(volume: Volume, elsewhere: str, resume: str):
    begin_attempt(volume, 1, "A").save(1)
    ranks = LivingRanks()
    origin = origin_of(volume, 2, ranks, "B", elsewhere if resume == ELSEWHERE else resume)
    assert (ranks.asked, origin.step) == (False, 4 if resume == ELSEWHERE else 0)
    assert read_claimed(volume, 2)["parent"] is None


def test_an_attempt_that_saved_nothing_is_continued_from_the_start(volume: Volume):
    """Its groups still count: their policy is named by the attempt that began the run."""
    begin_attempt(volume, 1, "A", resume="never")
    no_ranks = LivingRanks()
    vars(no_ranks)["take_over"] = lambda: None
    assert origin_of(volume, 2, no_ranks, "A", "never").step == 0
    assert read_claimed(volume, 2)["parent"] == 1


def test_a_checkpoint_of_the_run_itself_may_be_where_it_begins(volume: Volume):
    first = begin_attempt(volume, 1, "A", keepLast=9)
    back = str(first.save(1).path)
    first.save(2)
    begin_attempt(volume, 2, "B", resume=back).save(3)
    third = begin_attempt(volume, 3, "B", resume=back)
    assert third.found.manifest.step == 3
    shutil.rmtree(back)
    record_resume(volume, 4, claim(volume, 4), third.found)
    assert resumption_of(volume, "B", resume=back).continues()


def test_an_attempt_begins_though_nothing_can_be_deleted(volume: Volume, monkeypatch: pytest.MonkeyPatch):
    begin_attempt(volume, 1, "A").save(1)
    ranks = LivingRanks()
    monkeypatch.setattr(Pruning, "carry_out", failing(OSError(errno.EIO, "Input/output error")))
    assert origin_of(volume, 2, ranks, "A", "auto").step == 7
    monkeypatch.setattr(Pruning, "carry_out", failing(FencedError("attempt 4 has taken over")))
    with pytest.raises(FencedError):
        origin_of(volume, 3, ranks, "A", "auto")


def failing(error: Exception) -> Callable[[Pruning], Any]:
    def fails(_: Pruning) -> Any:
        raise error

    return fails
