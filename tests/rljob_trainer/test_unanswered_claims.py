"""An attempt's claim that the volume does not give: it may be whole, so nothing is decided without it."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rljob_trainer.attempt.claim import claim, record_resume, root_claim
from rljob_trainer.checkpoint.lineage import read_claim
from rljob_trainer.checkpoint.manifest import survey
from rljob_trainer.errors import FencedError, InfrastructureError, NoUsableCheckpoint
from rljob_trainer.progress.history import read_metrics
from rljob_trainer.progress.state import next_attempt
from rljob_trainer.volume import Volume
from tests.rljob_trainer.checkpoint_support import (
    Attempt,
    begin_attempt,
    names,
    read_claimed,
    resumption_of,
    write_steps,
)

Hide = Callable[[Path], None]


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    return Volume(tmp_path / "run")


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Hide:
    """The volume gives neither the file nor the folder of that path, until monkeypatch.undo()."""
    read, listed = Path.read_text, Path.iterdir

    def hidden(path: Path) -> None:
        def failing_at(works: Callable[..., Any]) -> Callable[..., Any]:
            def call(at: Path, *arguments: Any, **options: Any) -> Any:
                if at == path:
                    raise OSError(errno.EIO, os.strerror(errno.EIO), str(at))
                return works(at, *arguments, **options)

            return call

        monkeypatch.setattr(Path, "read_text", failing_at(read))
        monkeypatch.setattr(Path, "iterdir", failing_at(listed))

    return hidden


def second_of_a_run(volume: Volume) -> Attempt:
    """Attempt 1 died before its first checkpoint, and 2 goes on with its run."""
    begin_attempt(volume, 1, keepLast=9)
    second = begin_attempt(volume, 2, keepLast=9)
    record_resume(volume, 2, read_claimed(volume, 2)["nonce"], None, parent=1)
    return second


@pytest.mark.parametrize("path", ["attempts/2.json", "attempts"])
def test_an_attempt_does_not_begin_anew_because_a_claim_cannot_be_read(
    volume: Volume, path: str, hide: Hide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would record that it goes on with attempt 1, and delete what 2 saved as superseded."""
    second = second_of_a_run(volume)
    for step in (80, 90, 100):
        second.save(step)
    claim(volume, 3)
    hide(volume.root / path)
    third = resumption_of(volume)
    for ask in (third.continues, third.find, third.newest):
        with pytest.raises(InfrastructureError, match=rf"{path} cannot be read: Input/output error"):
            ask()
    monkeypatch.undo()
    found = begin_attempt(volume, 4, keepLast=9).found
    assert found.manifest.step == 100
    assert names(volume) == ["step-80-a2", "step-90-a2", "step-100-a2"]


def test_never_does_not_begin_anew_because_the_newest_claim_cannot_be_read(volume: Volume, hide: Hide) -> None:
    begin_attempt(volume, 1, "A", resume="never").save(1)
    hide(volume.claim(1))
    with pytest.raises(InfrastructureError, match=r"attempts/1.json cannot be read"):
        resumption_of(volume, "A", resume="never").continues()


def test_who_began_the_run_is_not_guessed(volume: Volume, hide: Hide, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else groups of the journal would be of another policy."""
    second_of_a_run(volume)
    root = root_claim(volume, 2)
    assert root is not None
    assert root.nonce == read_claimed(volume, 1)["nonce"]
    hide(volume.claim(1))
    with pytest.raises(InfrastructureError, match=r"attempts/1.json cannot be read"):
        root_claim(volume, 2)
    monkeypatch.undo()
    assert root_claim(volume, 2) == root


def test_what_an_old_claim_would_say_is_not_guessed_and_holds_up_no_run(volume: Volume, hide: Hide) -> None:
    """Keep a checkpoint of an earlier run; delete one that is superseded in this run."""
    begin_attempt(volume, 1, keepLast=9).save(1)
    begin_attempt(volume, 2, resume="never", keepLast=9).save(2)
    hide(volume.claim(1))
    other, newest = survey(volume)
    assert (other.standing, other.lost, newest.standing) == ("unreadable", False, "counts")
    assert other.problem == f"{volume.claim(1)} cannot be read: Input/output error; check the volume"
    third = begin_attempt(volume, 3, keepLast=1)
    assert third.found == newest.ref
    third.save(3)
    assert volume.checkpoint(1, 1).is_dir()


def test_a_claim_that_makes_no_sense_was_cut_short(volume: Volume) -> None:
    begin_attempt(volume, 1).save(1)
    for attempt, text in ((2, ""), (3, "[]"), (4, "{")):
        volume.claim(attempt).write_text(text)
    found = resumption_of(volume).find()
    assert found is not None
    assert found.manifest.step == 1


def damage_to(path: Path, damage: str) -> None:
    if damage == "gone":
        path.unlink()
    else:
        path.write_text(path.read_text()[:40] if damage == "cut short" else json.dumps({"attempt": 2}))


DAMAGES = ["cut short", "gone", "undecided"]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("attempt", [1, 2, 3], ids=["the first", "one in between", "the newest"])
@pytest.mark.parametrize("resume", ["auto", "never", "PATH"])
def test_a_claim_that_is_lost_is_known_by_its_copy(volume: Volume, resume: str, attempt: int, damage: str) -> None:
    if resume == "PATH":
        resume = str(begin_attempt(Volume(volume.root / "other"), 1).save(30).path)
    for each in (1, 2, 3):
        begin_attempt(volume, each, resume=resume, start_id="one", keepLast=9).save(30 + each)
    root = root_claim(volume, 3)
    damage_to(volume.claim(attempt), damage)
    assert root_claim(volume, 3) == root
    found = begin_attempt(volume, 4, resume=resume, start_id="one", keepLast=9).found
    assert found.path == volume.checkpoint(33, 3)
    assert [each.standing for each in survey(volume)] == ["counts"] * 3


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_does_not_go_back_past_checkpoints_whose_attempt_has_no_claim(volume: Volume, damage: str) -> None:
    """An attempt decides before it saves, so only a person may go back; the error says how."""
    begin_attempt(volume, 1, keepLast=9).save(40)
    second = begin_attempt(volume, 2, keepLast=9)
    for step in (45, 50):
        second.save(step)
    for path in (volume.claim(2), volume.claim_copy(2)):
        damage_to(path, damage)
    assert next_attempt(volume) == 3, "its number is not given to another"
    assert [each.standing for each in survey(volume)] == ["counts", "unclaimed", "unclaimed"]
    for ask in (resumption_of(volume).continues, resumption_of(volume).find):
        with pytest.raises(NoUsableCheckpoint, match=r"/2.json are .* step-45-a2, step-50-a2 is unknown"):
            ask()
    assert begin_attempt(volume, 3, resume=str(volume.checkpoint(50, 2)), keepLast=9).found.manifest.step == 50
    assert names(volume) == []
    assert len(list(volume.checkpoints.iterdir())) == 3, "nothing is deleted"


def test_a_copy_speaks_for_its_own_attempt_alone(volume: Volume) -> None:
    begin_attempt(volume, 1, keepLast=9).save(40)
    volume.claim(1).unlink()
    with pytest.raises(FencedError, match=r"attempt 1 is taken by .* A new job needs a volume"):
        claim(volume, 1)
    volume.claim(1).write_text(json.dumps({"attempt": 1, "nonce": "another's"}))
    found = read_claim(volume, 1)
    assert found is not None
    assert (found.nonce, found.resumed_step) == ("another's", None)


def test_a_number_is_not_given_again_whose_attempt_left_but_metrics_or_a_journal(volume: Volume) -> None:
    begin_attempt(volume, 1).save(40)
    write_steps(volume, 4, [41])
    assert next_attempt(volume) == 5
    volume.journal(6, 42).parent.mkdir(parents=True)
    assert next_attempt(volume) == 7


def test_without_any_claim_a_run_goes_on_under_a_number_that_nothing_has(volume: Volume) -> None:
    begin_attempt(volume, 1, keepLast=9).save(40)
    begin_attempt(volume, 2, keepLast=9).save(50)
    shutil.rmtree(volume.attempts)
    assert next_attempt(volume) == 3
    for attempt in (3, 4):
        begin_attempt(volume, attempt, keepLast=9).save(50 + attempt)
    assert begin_attempt(volume, 5).found.path == volume.checkpoint(54, 4)


def test_a_checkpoint_keeps_the_whole_curve_or_is_not_saved(volume: Volume, hide: Hide) -> None:
    first = begin_attempt(volume, 1)
    write_steps(volume, 1, [1, 2])
    hide(volume.metrics(1))
    with pytest.raises(InfrastructureError, match="Input/output error"):
        first.save(2)


def test_who_shows_a_run_does_not_end_for_it(volume: Volume, hide: Hide) -> None:
    begin_attempt(volume, 1)
    write_steps(volume, 1, [1, 2])
    hide(volume.claim(1))
    assert read_metrics(volume.root) == []
