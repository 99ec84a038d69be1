"""What chaos in a cluster finds wrong with a job: each of its verdicts, on histories that break it."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.recovery_page import write_part
from e2e.cluster_chaos.faults import FAULTS
from e2e.cluster_chaos.report import costs
from e2e.cluster_chaos.trial import PROMPTS, STEPS, SUPERVISED, Struck, Trial, problems, recovery_after
from e2e.cluster_chaos.verdicts import made_again, policies, unseen
from e2e.cluster_chaos.volume_watch import Attempts, VolumeWatch
from rljob_trainer.journal import JournalWriter, truncate
from rljob_trainer.journal.files import list_files
from rljob_trainer.journal.record import Match
from rljob_trainer.volume import Volume
from tests.rljob_trainer.journal_support import KEY, group, key, score_of


def line(step, attempt=1, **more):
    return {"step": step, "stage": "rl", "time": 100.0 + 2 * step, "time/step": 1.0, "attempt": attempt, **more}


ALL_STEPS = range(SUPERVISED + 1, SUPERVISED + STEPS + 1)


def of_step(step, policy="same"):
    return [Match(step, f"{policy}-{step}", "settings", f"0/{number}", "hash") for number in range(PROMPTS)]


def made(**steps):
    """By attempt, each group once, unless a step is named twice."""
    return [(int(name[1:]), match) for name, of in steps.items() for step in of for match in of_step(step)]


STRUCK = Struck(
    FAULTS[0], 130.0, attempt=1, step=18, durable=15, next_update=2.0, next_step=4.0, repeated=3, journaled=24
)


@pytest.fixture
def sound():
    lines = [line(step) for step in ALL_STEPS]
    status = {"phase": "Succeeded", "restarts": 1}
    attempts = Attempts(made=made(a1=ALL_STEPS))
    return Trial("job", Volume(Path("/none")), lines, lines, attempts, [STRUCK], status, clusters=1)


def test_a_sound_job_has_no_problems(sound):
    assert problems(sound) == []
    assert sound.effective_time_ratio == pytest.approx(STEPS / (2 * STEPS - 1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": {"phase": "Failed", "restarts": 0}}, "it is Failed"),
        ({"status": {"phase": "Succeeded", "restarts": 2}}, "2 restarts for 1 faults"),
        ({"history": [line(step) for step in ALL_STEPS[1:]]}, "its steps are"),
        ({"clusters": 2}, "2 clusters at once"),
        ({"left": ["secret/token"]}, "secret/token is left"),
        ({"attempts": Attempts(made=made(a1=ALL_STEPS, a2=[18]))}, "attempt 2 made 8 finished groups again"),
        ({"attempts": Attempts(made=made(a1=ALL_STEPS[1:]))}, "groups of 1 steps were not seen in the journal"),
        ({"struck": [replace(STRUCK, repeated=4)]}, "4 updates repeated from step 18, 15 was durable"),
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


def test_a_group_that_hides_behind_another_name_of_its_policy_shows():
    assert policies(made(a1=[16], a2=[16])) == []
    assert policies([*made(a1=[16]), *((2, match) for match in of_step(16, policy="other"))]) == [
        "groups of step 16 were made for 2 policies"
    ]


def test_a_journal_that_was_not_seen_says_nothing():
    assert unseen(made(a1=[16, 17]), [16, 17], PROMPTS) == []
    assert unseen([*made(a1=[16]), *made(a2=[18])], [16, 17, 18], PROMPTS) == [
        "groups of 1 steps were not seen in the journal, of step 17 first"
    ]


def test_groups_are_seen_whose_files_a_checkpoint_made_needless(tmp_path):
    volume = Volume(tmp_path / "volume")
    watch = VolumeWatch(volume)
    with JournalWriter(volume) as writer:
        for attempt, numbers in ((1, (0, 1)), (2, (2,))):
            for number in numbers:
                writer.append(key(attempt=attempt), group(number), score_of(group(number)))
                watch.look()
    truncate(volume, KEY.step, attempt=2)
    assert list_files(volume) == []
    watch.end()
    found = sorted((attempt, match.step, match.prompt_id) for attempt, match in watch.attempts.made)
    assert found == [(1, 7, "0/0"), (1, 7, "0/1"), (2, 7, "0/2")]
    assert [path.name for path in tmp_path.iterdir()] == ["volume"], "nothing is left beside it"


# ---- what faults cost


def test_costs_are_told_by_fault():
    last = costs([STRUCK, replace(STRUCK, fault=FAULTS[-1], next_update=8.0, repeated=0)]).splitlines()
    assert [row.split("|")[1].strip() for row in last if row][2:] == [FAULTS[0].name, FAULTS[-1].name, "**all**"]
    assert last[2] == "| driver killed | 1 | 2.0 | 2.0 | 4.0 | 4.0 | 3.0 | 3 | 24 |"


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


def test_the_page_holds_every_part_that_is_there(tmp_path):
    write_part(tmp_path, "recovery_cluster.md", "# In a cluster\n\n## Costs\n")
    write_part(tmp_path, "recovery_local.md", "# On one machine\n")
    headings = ["# Recovery from faults", "## On one machine", "## In a cluster", "### Costs"]
    assert (tmp_path / "recovery.md").read_text().split("\n\n") == [*headings[:-1], "### Costs\n"]
