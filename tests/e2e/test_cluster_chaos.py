"""What chaos in a cluster finds wrong with a job: each of its verdicts, on histories that break it."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.recovery_page import write_part
from e2e.cluster_chaos.faults import FAULTS
from e2e.cluster_chaos.report import costs
from e2e.cluster_chaos.trial import STEPS, SUPERVISED, Struck, Trial, generated_again, problems, recovery_after
from rljob_trainer.volume import Volume


def line(step, attempt=1, **more):
    return {"step": step, "stage": "rl", "time": 100.0 + 2 * step, "time/step": 1.0, "attempt": attempt, **more}


STRUCK = Struck(FAULTS[0], 130.0, step=18, durable=15, next_update=2.0, next_step=4.0, repeated=3, journaled=24, lost=0)


@pytest.fixture
def sound():
    lines = [line(step) for step in range(SUPERVISED + 1, SUPERVISED + STEPS + 1)]
    status = {"phase": "Succeeded", "restarts": 1}
    return Trial("job", Volume(Path("/none")), lines, lines, [STRUCK], status, clusters=1)


def test_a_sound_job_has_no_problems(sound):
    assert problems(sound) == []
    assert sound.effective_time_ratio == pytest.approx(STEPS / (2 * STEPS - 1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": {"phase": "Failed", "restarts": 0}}, "it is Failed"),
        ({"status": {"phase": "Succeeded", "restarts": 2}}, "2 restarts for 1 faults"),
        ({"history": [line(step) for step in range(SUPERVISED + 2, SUPERVISED + STEPS + 1)]}, "its steps are"),
        ({"clusters": 2}, "2 clusters at once"),
        ({"left": ["secret/token"]}, "secret/token is left"),
        ({"struck": [replace(STRUCK, lost=5)]}, "5 finished groups were generated again: driver killed at step 18"),
        ({"struck": [replace(STRUCK, repeated=4)]}, "4 updates repeated from step 18, 15 was durable"),
        ({"struck": [replace(STRUCK, next_update=float("inf"))]}, "it did not go on within 300 s: driver killed"),
    ],
)
def test_what_is_wrong_is_said(sound, changes, words):
    (found,) = problems(replace(sound, **changes))
    assert words in found


@pytest.mark.parametrize(
    ("held", "after", "lost"),
    [
        ({17: 8, 18: 5}, [], 0),  # the attempt goes on
        ({17: 8, 18: 5}, [line(17, 2, **{"recovery/journaled_groups": 8})], 0),  # 18 is still to come
        ({17: 8, 18: 5}, [line(each, 2, **{"recovery/journaled_groups": 8}) for each in (17, 18)], 0),
        (
            {17: 8, 18: 5},
            [line(18, 2, **{"recovery/journaled_groups": 3})],
            2,
        ),  # its ranks were ahead of the file of 17
        ({17: 8, 18: 5}, [line(17, 2), line(18, 2, **{"recovery/journaled_groups": 5})], 8),
        ({17: 8}, [line(17, 2, **{"time/rollout": 0.8, "time/update": 0.5}), line(18, 2)], 0),  # its ranks had done 17
    ],
)
def test_groups_that_the_journal_held_and_nobody_took_are_counted(held, after, lost):
    assert generated_again(held, after) == lost


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
