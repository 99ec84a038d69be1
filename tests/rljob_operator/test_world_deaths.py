"""The operator is killed after every single write of a job's life, or never hears that the write was made.

Whichever write it was, the job's life ends as if nothing had happened: no duplicate, no orphan, no restart charged.
`make test` visits every third write of a life, RLJOB_EVERY_WRITE=1 every one, as `make chaos-operator` does.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import pytest

from rljob_operator.kube.kinds import EVENT
from tests.rljob_operator.loops import in_jumping_loop
from tests.rljob_operator.world import stories
from tests.rljob_operator.world.ending import check_silence
from tests.rljob_operator.world.stories import Story
from tests.rljob_operator.world.wire import Call, Fate, Turn
from tests.rljob_operator.world.world import World

LIVES: tuple[Story, ...] = (
    stories.finishes,
    stories.gets_other_pods,
    stories.gets_another_cluster,
    stories.is_suspended_and_resumed,
    stories.is_deleted,
    stories.is_wrong,
)


EACH = 1 if os.environ.get("RLJOB_EVERY_WRITE") == "1" else 3
FATES = (Fate.KILLED, Fate.LOST)


@dataclass
class FateOfWrites:
    """Counts writes; the one of that number, from 0, meets the fate."""

    fate: Fate = Fate.DONE
    number: int = -1
    writes: list[Call] = field(default_factory=list)

    def __call__(self, call: Call) -> Turn:
        if not call.writes:
            return Turn()
        self.writes.append(call)
        return Turn(self.fate if len(self.writes) - 1 == self.number else Fate.DONE)


async def life(story: Story, fates: Callable[[Call], Turn]) -> World:
    world = World()
    world.next_turn = fates
    world.user.create()
    await world.start()
    await story(world)
    await world.rest()
    return world


def outcome(world: World) -> dict[str, Any]:
    """What somebody finds afterwards. Which events were posted is no part of it: one may be lost with its operator."""
    job = world.user.job
    status = job["status"] if job is not None else {}
    return {
        "status": {field: status.get(field) for field in ("phase", "attempt", "restarts")},
        "conditions": {each["type"]: (each["status"], each["reason"]) for each in status.get("conditions", ())},
        "drivers": [(driver.attempt, driver.code, driver.dead) for driver in world.heads.drivers],
        "objects": sorted((kind.name, key.name) for kind, key in world.server.objects if kind != EVENT),
    }


@pytest.mark.parametrize("fate", FATES, ids=["killed", "lost"])
@pytest.mark.parametrize("story", LIVES, ids=lambda story: story.__name__.replace("_", " "))
@in_jumping_loop
async def test_whichever_write_is_the_last_one_the_life_ends_the_same(story: Story, fate: Fate) -> None:
    told = FateOfWrites()
    wanted = outcome(await life(story, told))
    first = await beginning(story, told.writes) + (LIVES.index(story) + FATES.index(fate)) % EACH
    for number in range(first, len(told.writes), EACH):
        world = await life(story, FateOfWrites(fate, number))
        assert outcome(world) == wanted, f"{fate.name} at {told.writes[number]}, write {number}"
        await check_silence(world)


async def beginning(story: Story, writes: list[Call]) -> int:
    """How many writes it takes until more happens than in the first story, where those are visited."""
    if story is LIVES[0]:
        return 0
    first = FateOfWrites()
    await life(LIVES[0], first)
    return len([*takewhile(lambda pair: pair[0] == pair[1], zip(writes, first.writes, strict=False))])
