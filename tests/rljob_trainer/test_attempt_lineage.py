"""Which attempts a run consists of, who may write, and what is ignored whenever it was written."""

import json
import multiprocessing
import shutil

import pytest

from rljob_trainer.attempt.claim import check_not_superseded, claim, record_resume
from rljob_trainer.checkpoint.lineage import lineage
from rljob_trainer.checkpoint.manifest import MANIFEST, METRICS, survey
from rljob_trainer.errors import DataError, FencedError, InfrastructureError, NoUsableCheckpoint
from rljob_trainer.progress.history import read_metrics
from rljob_trainer.progress.overview import look_at
from rljob_trainer.volume import Volume
from tests.rljob_trainer.checkpoint_support import (
    begin_attempt,
    checkpoints_of,
    names,
    read_claimed,
    resumption_of,
    write_steps,
)


@pytest.fixture
def volume(tmp_path):
    return Volume(tmp_path / "run")


def history(volume):
    return [(line["step"], line["attempt"]) for line in read_metrics(volume.root)]


def standings(volume):
    return {each.path.name: each.standing for each in survey(volume)}


# ---------------------------------------------------------------------- claims


def test_a_claim_says_what_the_attempt_continues(volume):
    begin_attempt(volume, 1).save(4)
    begin_attempt(volume, 2, owner="uid")
    nonces = set()
    for attempt, parent, source, step in [(1, None, None, 0), (2, 1, "step-4-a1", 4)]:
        written = read_claimed(volume, attempt)
        nonces.add(written.pop("nonce"))
        assert written.pop("startTime")
        expected = {
            "attempt": attempt,
            "layoutVersion": 1,
            "owner": "uid" if parent else None,
            "parent": parent,
            "resumedFrom": source,
            "resumedStep": step,
            "freshFor": None,
        }
        assert written == expected
    assert len(nonces) == 2


def test_living_workers_may_be_ahead_of_the_checkpoint(volume):
    first = begin_attempt(volume, 1)
    ref = first.save(4)
    write_steps(volume, 1, range(1, 8))
    record_resume(volume, 2, claim(volume, 2), ref, parent=1, step=6)
    write_steps(volume, 2, range(7, 9))
    assert history(volume) == [(step, 1) for step in range(1, 7)] + [(7, 2), (8, 2)]
    assert read_claimed(volume, 2)["resumedFrom"] == "step-4-a1"


@pytest.mark.parametrize("loss", ["its manifest", "its folder"])
def test_a_checkpoint_that_is_lost_while_workers_live_is_not_forgotten(volume, loss):
    """They are ahead of it. Where they die before the next checkpoint, the run does not begin again."""
    ref = begin_attempt(volume, 1).save(4)
    (ref.path / MANIFEST).unlink() if loss == "its manifest" else shutil.rmtree(ref.path)
    resumption = resumption_of(volume)
    second = checkpoints_of(volume, 2, resumption.spared)
    nonce, newest = claim(volume, 2), resumption.newest()
    assert newest is not None
    assert (newest.path, newest.lost, newest.ref) == (ref.path, True, None)
    record_resume(volume, 2, nonce, None, parent=1, step=6, lost=newest.path.name)
    second.prune()
    assert ref.path.exists() == (loss == "its manifest"), "a person may restore it"
    with pytest.raises(NoUsableCheckpoint, match="1 of 1 checkpoints are damaged or deleted"):
        begin_attempt(volume, 3)


def test_a_number_that_is_taken_or_superseded_is_refused(volume):
    nonce = claim(volume, 3)
    start = read_claimed(volume, 3)["startTime"]
    with pytest.raises(FencedError, match=f"^attempt 3 is taken by the driver that started at {start[:10]}"):
        claim(volume, 3)
    with pytest.raises(FencedError, match=r"^attempt 3 .* has taken over from attempt 2"):
        claim(volume, 2)
    with pytest.raises(FencedError, match="attempt 3 now belongs to"):
        record_resume(volume, 3, "another nonce", None)
    volume.claim(4).touch()  # it has just begun
    with pytest.raises(FencedError, match=r"attempt 4 .* has taken over from attempt 3"):
        record_resume(volume, 3, nonce, None)
    check_not_superseded(volume, 4)


def _race(volume, start, results):
    start.wait()
    try:
        results.put(claim(volume, 1))
    except FencedError as error:
        results.put(error)


def test_of_drivers_that_start_at_once_one_wins(tmp_path):
    """Real processes, and more of them than a supervisor could ever start by mistake."""
    context = multiprocessing.get_context("forkserver")
    for round_ in range(3):
        volume, start, results = Volume(tmp_path / str(round_)), context.Barrier(4), context.Queue()
        racers = [context.Process(target=_race, args=(volume, start, results)) for _ in range(4)]
        for racer in racers:
            racer.start()
        outcomes = [results.get(timeout=30) for _ in racers]
        for racer in racers:
            racer.join()
        won = [each for each in outcomes if isinstance(each, str)]
        assert [read_claimed(volume, 1)["nonce"]] == won
        assert {each.exit_code for each in outcomes if isinstance(each, FencedError)} == {77}


# ---------------------------------------------------------------------- what counts


def test_what_was_committed_after_an_attempt_was_superseded_is_ignored(volume):
    """The example of lineage.py."""
    first = begin_attempt(volume, 1, keepLast=10)
    for step in (10, 20, 30, 40):
        first.save(step)
    second = begin_attempt(volume, 2, keepLast=10)
    assert second.found.path.name == "step-40-a1"
    second.save(50)
    late = volume.checkpoint(45, 1)  # as a driver that was frozen after its last look would
    shutil.copytree(volume.checkpoint(40, 1), late)
    written = json.loads((late / "manifest.json").read_text())
    (late / "manifest.json").write_text(json.dumps(written | {"step": 45}))
    claim(volume, 3)
    assert names(volume) == ["step-10-a1", "step-20-a1", "step-30-a1", "step-40-a1", "step-50-a2"]
    assert standings(volume)["step-45-a1"] == "superseded"
    assert [(each.attempt, each.checkpoints) for each in lineage(volume).segments] == [(2, float("inf")), (1, 40)]
    newest = look_at(volume.root).checkpoint
    assert newest is not None
    assert newest.path.name == "step-50-a2"
    begin_attempt(volume, 4, keepLast=10)
    assert not late.exists()
    assert len(names(volume)) == 5


def test_a_late_checkpoint_of_the_same_step_loses_to_the_new_attempts(volume):
    first = begin_attempt(volume, 1)
    first.save(10)
    late = first.save(20).path
    moved = late.rename(volume.root / "aside")
    begin_attempt(volume, 2).save(20)
    moved.rename(late)
    assert names(volume) == ["step-10-a1", "step-20-a2"]


def test_metrics_and_checkpoints_follow_the_same_lineage(volume):
    first = begin_attempt(volume, 1)
    write_steps(volume, 1, range(1, 6))
    first.save(3)
    begin_attempt(volume, 2)
    write_steps(volume, 2, range(4, 6))
    write_steps(volume, 1, range(6, 9))  # attempt 1 still runs, but is superseded
    expected = [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)]
    assert history(volume) == expected
    claim(volume, 3)
    assert history(volume) == expected


def test_a_step_that_two_attempts_report_is_the_newer_ones(volume):
    """Attempt 2 took over ranks that had done step 4, and reported it; frozen attempt 1 woke up and did so too."""
    begin_attempt(volume, 1)
    write_steps(volume, 1, range(1, 4))
    record_resume(volume, 2, claim(volume, 2), None, parent=1, step=4)
    write_steps(volume, 2, range(4, 6))
    write_steps(volume, 1, [4])
    assert history(volume) == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)]


def test_a_lost_claim_hides_no_checkpoint_of_the_attempts_that_are_known(volume):
    begin_attempt(volume, 1).save(1)
    begin_attempt(volume, 2).save(2)
    begin_attempt(volume, 3).save(3)
    for path in (volume.claim(1), volume.claim_copy(1)):
        path.write_text("")  # torn
    assert names(volume) == ["step-1-a1", "step-2-a2", "step-3-a3"]
    volume.claim(3).unlink()
    volume.claim_copy(3).unlink()
    assert names(volume) == ["step-1-a1", "step-2-a2"]
    for path in volume.attempts.iterdir():
        path.unlink()
    assert names(volume) == ["step-1-a1", "step-2-a2", "step-3-a3"]  # nothing speaks against any


# ---------------------------------------------------------------------- new runs, and checkpoints of other runs


def test_a_run_that_is_begun_anew_keeps_the_earlier_one_apart(volume):
    old = begin_attempt(volume, 1, keepLast=1)
    write_steps(volume, 1, range(1, 3))
    old.save(2)
    fresh = begin_attempt(volume, 2, resume="never", keepLast=1)
    assert (fresh.found, history(volume), names(volume)) == (None, [], [])
    for step in (1, 2):
        fresh.save(step)
    assert standings(volume) == {"step-2-a1": "earlier run", "step-2-a2": "counts"}
    again = begin_attempt(volume, 3, keepLast=1)
    assert again.found.path.name == "step-2-a2"


def test_a_run_that_was_begun_anew_and_saved_nothing_begins_at_0(volume):
    begin_attempt(volume, 1).save(2)
    begin_attempt(volume, 2, resume="never")
    assert begin_attempt(volume, 3).found is None


def test_a_run_begins_from_another_runs_checkpoint_and_keeps_its_curve(volume, tmp_path):
    other = Volume(tmp_path / "other")
    source = begin_attempt(other, 1)
    write_steps(other, 1, range(1, 6))
    ref = source.save(4)
    assert [json.loads(line)["step"] for line in (ref.path / METRICS).read_text().splitlines()] == [1, 2, 3, 4]
    first = begin_attempt(volume, 1, resume=str(ref.path))
    assert [read_claimed(volume, 1)[key] for key in ("resumedFrom", "resumedStep")] == [str(ref.path), 4]
    # Before it has a checkpoint of its own, a retry begins there once more; also one that says "auto".
    assert begin_attempt(volume, 2).found == first.found
    third = begin_attempt(volume, 3, resume=str(ref.path))
    write_steps(volume, 3, range(5, 7))
    third.save(6)
    shutil.rmtree(other.root)
    fourth = begin_attempt(volume, 4, resume=str(ref.path))
    assert fourth.found.path == volume.checkpoint(6, 3)
    assert history(volume) == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 3), (6, 3)]
    assert begin_attempt(other, 1, resume=str(volume.checkpoint(6, 3))).found.manifest.step == 6
    assert [step for step, _ in history(other)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("lost", [(1,), (2,), (1, 2, 3)])
def test_a_run_that_lost_claims_keeps_its_curve(volume, lost):
    for attempt in (1, 2, 3):
        begun = begin_attempt(volume, attempt)
        write_steps(volume, attempt, (attempt * 2 - 1, attempt * 2))
        begun.save(attempt * 2)
    whole = history(volume)
    assert [step for step, _ in whole] == [1, 2, 3, 4, 5, 6]
    for attempt in lost:
        volume.claim(attempt).unlink()
        volume.claim_copy(attempt).unlink()
    if lost == (1, 2, 3):
        shutil.rmtree(volume.attempts)
    for attempt in (4, 5):
        begun = begin_attempt(volume, attempt)
        assert history(volume) == [*whole, *((step, step - 3) for step in range(7, attempt + 3))]
        write_steps(volume, attempt, [attempt + 3])
        begun.save(attempt + 3)


def test_a_run_goes_back_to_an_older_checkpoint_of_its_own_and_loses_none(volume):
    first = begin_attempt(volume, 1)
    for step in (1, 2, 3):
        first.save(step)
    back = begin_attempt(volume, 2, resume=str(volume.checkpoint(1, 1)), keepLast=1)
    back.save(2)
    assert standings(volume) == {
        "step-1-a1": "earlier run", "step-2-a1": "earlier run", "step-2-a2": "counts", "step-3-a1": "earlier run",
    }  # fmt: skip


def test_a_run_that_began_elsewhere_and_lost_its_own_checkpoints_does_not_go_back_there(volume, tmp_path):
    elsewhere = str(begin_attempt(Volume(tmp_path / "other"), 1).save(1).path)
    assert begin_attempt(volume, 1, resume=elsewhere).found.manifest.step == 1
    assert begin_attempt(volume, 2, resume=elsewhere).found.manifest.step == 1
    own = begin_attempt(volume, 3, resume=elsewhere).save(2)
    (own.path / "trainer.json").write_text("{}")
    with pytest.raises(NoUsableCheckpoint, match="1 of 1 checkpoints are damaged or deleted"):
        resumption_of(volume, resume=elsewhere).find()


def test_a_path_that_is_no_whole_checkpoint_is_refused(volume):
    with pytest.raises(DataError, match=r"^spec\.checkpoint\.resume: /nowhere/step-1-a1 is not a finished checkpoint"):
        resumption_of(volume, resume="/nowhere/step-1-a1").find()
    ref = begin_attempt(volume, 1).save(1)
    (ref.path / "trainer.json").write_text("{}")
    with pytest.raises(DataError, match=r"step-1-a1: trainer\.json is damaged; restore it"):
        resumption_of(volume, resume=str(ref.path)).find()


@pytest.mark.parametrize("known_by", ["the last commit", "the claim"])
def test_a_run_whose_checkpoints_are_gone_does_not_begin_again(volume, known_by):
    begin_attempt(volume, 1).save(2)
    if known_by == "the claim":
        begin_attempt(volume, 2)
        volume.newest_commit(1).unlink()
    shutil.rmtree(volume.checkpoint(2, 1))
    assert standings(volume) == {"step-2-a1": "gone"}
    with pytest.raises(NoUsableCheckpoint, match=r"1 of 1 checkpoints are damaged or deleted .*resume: never"):
        resumption_of(volume).find()
    assert resumption_of(volume, resume="never").find() is None


def test_a_volume_that_does_not_say_who_has_the_run_fences_too(tmp_path):
    volume = Volume(tmp_path)
    volume.attempts.write_text("no folder, so it cannot be listed")
    with pytest.raises(InfrastructureError, match=r"the claims in .* cannot be listed"):
        check_not_superseded(volume, 1)
