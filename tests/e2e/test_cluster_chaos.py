"""What chaos in a cluster finds wrong with a job: each of its verdicts, on histories that break it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster_chaos.cluster_watch import Running, SideBySide
from e2e.cluster_chaos.faults import FAULTS
from e2e.cluster_chaos.trial import PROMPTS, STEPS, SUPERVISED, Struck, Trial, problems, recovery_after
from e2e.cluster_chaos.verdicts import durable_step, made_again, renamed, repeated_within, unseen, went_back
from e2e.cluster_chaos.volume_watch import Attempts, Match, VolumeWatch
from rljob_trainer.checkpoint.lineage import Claim
from rljob_trainer.journal import truncate
from rljob_trainer.journal.files import list_files
from rljob_trainer.volume import Volume, write_json
from tests.rljob_trainer.journal_support import VERSION, episode, write


def line(step, attempt=1, **more):
    return {"step": step, "stage": "rl", "time": 100.0 + 2 * step, "time/step": 1.0, "attempt": attempt, **more}


ALL_STEPS = range(SUPERVISED + 1, SUPERVISED + STEPS + 1)


def of_step(step, policy="same"):
    return [Match(step, f"{policy}-{step}", "settings", f"0/{number}/0", "hash") for number in range(PROMPTS)]


def made(**steps):
    """By attempt, each group once, unless a step is named twice."""
    return [(int(name[1:]), match) for name, of in steps.items() for step in of for match in of_step(step)]


def resumed(number, checkpoint, step):
    """A claim. Its parent is the attempt that wrote the checkpoint."""
    return Claim(number, "", int(checkpoint.rpartition("a")[2]), checkpoint, step)


def attempts(*claims, checkpoints=((15, 1), (20, 1)), groups=None):
    """The first began with nothing. checkpoints: that all later ones found."""
    known = {claim.attempt: claim for claim in (Claim(1, resumed_step=0), *claims)}
    before = {number: frozenset(checkpoints if number > 1 else ()) for number in known}
    return Attempts(dict.fromkeys(known, 90.0), before, known, made(a1=ALL_STEPS) if groups is None else groups)


SOUND = attempts(resumed(2, "step-20-a1", 22))

STRUCK = Struck(FAULTS[0], 130.0, attempt=1, step=18, next_update=2.0, next_step=4.0, repeated=3, journaled=24)


def ran(**changes: Any) -> Running:
    """What was seen of a job of which nothing was there twice, but for the changes."""
    return replace(Running(1, 1, 1, {1}, head_seen=True), **changes)


@pytest.fixture
def sound():
    lines = [line(step) for step in ALL_STEPS]
    status = {"phase": "Succeeded", "restarts": 1, "completionTime": "1970-01-01T00:13:10Z"}
    return Trial("job", Volume(Path("/none")), lines, lines, SOUND, ran(driven={1, 2}), [STRUCK], status)


def test_a_sound_job_has_no_problems(sound):
    assert problems(sound) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": {"phase": "Failed", "restarts": 0}}, "it is Failed"),
        ({"status": {"phase": "Succeeded", "restarts": 2}}, "2 restarts for 1 faults"),
        ({"history": [line(step) for step in ALL_STEPS[1:]]}, "its steps are"),
        ({"running": ran(heads=2)}, "2 head pods ran at once"),
        ({"running": ran(clusters=2)}, "pods of 2 RayClusters ran at once"),
        ({"running": ran(asked=2)}, "there were 2 RayClusters at once"),
        ({"running": ran(driven=set())}, "none of its drivers was seen"),
        ({"running": ran(twice={1})}, "attempt 1 had two drivers"),
        ({"running": ran(awake=SideBySide(40.0))}, "two drivers were awake for 40 s"),
        ({"running": ran(head_seen=False)}, "none of its Ray heads was seen"),
        ({"running": ran(ray_heads=SideBySide(40.0))}, "two Ray heads ran for 40 s"),
        ({"left": ["secret/token"]}, "secret/token is left"),
        ({"attempts": attempts(groups=made(a1=ALL_STEPS, a2=[18]))}, "attempt 2 made 8 finished groups again"),
        ({"attempts": attempts(groups=made(a1=ALL_STEPS[1:]))}, "groups of 1 steps were not seen in the journal"),
        ({"attempts": attempts(resumed(2, "step-15-a1", 15))}, "attempt 2 went back to step 15, 20 was durable"),
        ({"struck": [replace(STRUCK, next_update=float("inf"))]}, "it did not go on within 300 s: driver killed"),
    ],
)
def test_what_is_wrong_is_said(sound, changes, words):
    (found,) = problems(replace(sound, **changes))
    assert words in found


# ---- finished groups


@pytest.mark.parametrize(
    ("groups", "wrong"),
    [
        (made(a1=[16, 17, 18], a2=[19]), []),  # the older ones' were taken from the journal, or trained on
        (
            made(a1=[16, 17, 18], a2=[19], a3=[16, 17, 18, 19]),
            ["attempt 3 made 32 finished groups again, 8 of step 16"],
        ),
        (made(a1=[16, 16]), ["attempt 1 made 8 finished groups again, 8 of step 16"]),  # an engine was lost
        ([*made(a1=[16]), *((2, match) for match in of_step(16, policy="other"))], []),  # of no use to another policy
    ],
)
def test_groups_that_the_journal_held_are_not_made_again(groups, wrong):
    assert made_again(groups) == wrong


def test_a_group_that_a_lost_scorer_scores_again_is_not_made_again_but_another_attempts_is():
    assert made_again(made(a1=[16, 16]), rescored={1}) == []
    assert made_again(made(a1=[16], a2=[16]), rescored={1, 2}) == [
        "attempt 2 made 8 finished groups again, 8 of step 16"
    ]


@pytest.mark.parametrize(
    ("other", "wrong"),
    [
        ({}, []),
        ({"policy_digest": "other"}, ["groups of step 16 were made for 2 policies or settings"]),
        ({"fingerprint": "other"}, ["groups of step 16 were made for 2 policies or settings"]),
        ({"prompt": "other"}, ["8 prompts had two hashes within a step, 0/0/0 of step 16 first"]),
        ({"step": 17, "policy_digest": "other", "prompt": "other"}, []),
    ],
)
def test_groups_that_hide_behind_another_name_show(other, wrong):
    assert renamed([*made(a1=[16]), *((2, match._replace(**other)) for match in of_step(16))]) == wrong


def test_a_journal_that_was_not_seen_says_nothing():
    assert unseen(made(a1=[16, 17]), [16, 17], PROMPTS) == []
    assert unseen([*made(a1=[16]), *made(a2=[18])], [16, 17, 18], PROMPTS) == [
        "groups of 1 steps were not seen in the journal, of step 17 first"
    ]


def test_groups_are_seen_whose_files_a_checkpoint_made_needless(tmp_path):
    volume = Volume(tmp_path / "volume")
    watch = VolumeWatch(volume)
    for attempt, numbers in ((1, (0, 1)), (2, (2,))):
        for number in numbers:
            write(volume, episode(number), attempt=attempt)
            watch.look()
    truncate(volume, VERSION + 1, attempt=2)
    assert list_files(volume) == []
    watch.end()
    found = sorted((attempt, match.step, match.task_id) for attempt, match in watch.attempts.made)
    assert found == [(1, VERSION + 1, "0/0/0"), (1, VERSION + 1, "0/1/0"), (2, VERSION + 1, "0/2/0")]
    assert [path.name for path in tmp_path.iterdir()] == ["volume"], "nothing is left beside it"


# ---- updates that are done again


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (attempts(resumed(2, "step-20-a1", 20)), []),
        (attempts(resumed(2, "step-20-a1", 22)), []),  # living ranks were ahead
        (attempts(resumed(2, "step-15-a1", 15)), ["attempt 2 went back to step 15, 20 was durable"]),
        (attempts(Claim(2, resumed_step=0), checkpoints=[(5, 1)]), ["attempt 2 went back to step 0, 5 was durable"]),
    ],
)
def test_an_attempt_goes_on_from_what_was_durable(found, wrong):
    assert went_back(found) == wrong


def test_a_checkpoint_of_an_attempt_that_was_superseded_before_does_not_count():
    """The first one, frozen until then, commits step 20 after the second has gone on from 15."""
    claims = attempts(resumed(2, "step-15-a1", 17)).claims
    assert durable_step(claims, 1, [(15, 1), (20, 1)]) == 20
    assert durable_step(claims, 2, [(15, 1), (20, 1)]) == 15
    assert durable_step(claims, 2, [(15, 1), (20, 1), (18, 2)]) == 18


def test_a_checkpoint_counts_if_it_was_there_when_the_attempt_claimed_its_number(tmp_path):
    volume = Volume(tmp_path / "volume")
    watch = VolumeWatch(volume)
    write_json(volume.claim(1), {"attempt": 1, "resumedStep": 0})
    for step in (15, 20):
        watch.look()
        write_json(volume.checkpoint(step, 1) / "manifest.json", {})
    (volume.checkpoints / ".step-25-a1.part").mkdir()
    watch.look()
    write_json(volume.claim(2), {"attempt": 2, "parent": 1, "resumedFrom": "step-15-a1", "resumedStep": 15})
    write_json(volume.checkpoint(22, 1) / "manifest.json", {})  # too late for the second
    watch.look()
    watch.end()
    assert watch.attempts.before == {1: frozenset(), 2: {(15, 1), (20, 1)}}
    assert went_back(watch.attempts) == ["attempt 2 went back to step 15, 20 was durable"]
    assert watch.attempts.at(watch.attempts.begun[2]) == 2
    assert watch.attempts.at(0.0) == 0


def test_an_attempt_does_a_step_once_and_none_that_it_had():
    found = attempts(resumed(2, "step-20-a1", 22))
    lines = [*(line(step) for step in range(11, 24)), *(line(step, 2) for step in (22, 23, 24))]
    assert repeated_within(lines, found) == []
    assert repeated_within([*lines, line(24, 2)], found) == ["attempt 2 did step 24 2 times"]
    assert repeated_within([*lines, line(21, 2)], found) == ["attempt 2 did step 21, and went on after 22"]


# ---- what faults cost


@pytest.mark.parametrize(
    ("at", "lost", "update", "step"),
    [
        (125.0, None, 126.0, 126.0),  # in the rollout of step 13
        (125.7, None, 128.0, 128.0),  # the update of step 13 goes on: of the one after it something can be said
        (125.7, 1, None, None),  # what the attempt that was struck still writes is no recovery
    ],
)
def test_what_comes_after_a_fault(at, lost, update, step):
    lines = [line(each, **{"time/update": 0.5}) for each in range(11, 18)]
    found = recovery_after(lines, at, lost=lost)
    assert (found and found.update, found and found.step) == (update, step)


def test_what_comes_after_a_fault_that_costs_the_attempt():
    lines = [line(11), line(12), line(13), *(line(each, 2) | {"time": 140.0 + each} for each in (12, 13, 14))]
    found = recovery_after(lines, 125.0, lost=1)
    assert found is not None
    assert (found.update, found.step, found.repeated) == (152.0, 154.0, 2)
