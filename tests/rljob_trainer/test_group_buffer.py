"""The age of groups, and what the buffer keeps of them."""

import pytest

from rljob_trainer.rollouts.group_buffer import GroupBuffer
from rljob_trainer.types import Group
from tests.rljob_trainer.journal_support import agents_episode, group, group_ref, task

OLD, NEW = group_ref(group(1, version=6)), group_ref(group(2, version=7))
MIXED = group_ref(Group(task(3), (agents_episode(3),)))
"""Begun by the policy 6 and ended by 7: as old as its oldest token in the loss."""


def filled(max_staleness: int) -> GroupBuffer:
    buffer = GroupBuffer(max_staleness)
    for each in (OLD, NEW, MIXED):
        buffer.add(each)
    return buffer


@pytest.mark.parametrize(
    ("max_staleness", "version", "dropped"),
    [(0, 6, []), (0, 7, [OLD, MIXED]), (0, 8, [OLD, NEW, MIXED]), (1, 7, []), (1, 8, [OLD, MIXED])],
)
def test_groups_older_than_allowed_are_dropped(max_staleness, version, dropped):
    buffer = filled(max_staleness)
    assert buffer.drop_stale(version) == dropped
    for each in (OLD, NEW, MIXED):
        assert buffer.get(each.summary.task_id) == (None if each in dropped else each)
    assert len(buffer) == 3 - len(dropped)


def test_of_one_task_the_last_group_counts():
    buffer, again = filled(0), group_ref(group(1, version=8))
    buffer.add(again)
    assert buffer.get("0/1/0") is again
    buffer.clear()
    assert len(buffer) == 0
