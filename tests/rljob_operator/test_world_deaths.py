"""The operator is killed after every single write of a job's life, or never hears that the write was made.

Whichever write it was, the job's life ends as if nothing had happened: no duplicate, no orphan, no restart charged.
`make test` visits every fifth write of a life, RLJOB_EVERY_WRITE=1 every one, as `make chaos-operator` does.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any

import pytest

from rljob_operator.kube.kinds import EVENT, RAY_CLUSTER, Kind, Manifest
from tests.rljob_operator.loops import in_jumping_loop
from tests.rljob_operator.world import stories
from tests.rljob_operator.world.controllers import avoided
from tests.rljob_operator.world.ending import check_silence
from tests.rljob_operator.world.schedule import HAPPENINGS
from tests.rljob_operator.world.user import MEASURED, QUEUED, SERVED
from tests.rljob_operator.world.wire import Call, Fate, Turn
from tests.rljob_operator.world.world import World


@dataclass(frozen=True)
class Life:
    """story: a name of STORIES. born: fields of the spec."""

    story: str
    born: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return ", ".join([self.story, *("with " + each for each in self.born)])


LIVES = (
    *map(
        Life,
        ("finishes", "gets other pods", "gets another cluster", "is suspended and resumed", "is deleted", "is wrong"),
    ),
    Life("avoids a slow node", MEASURED),
    Life("avoids a slow node", MEASURED | QUEUED),
    *(Life(each, QUEUED | SERVED) for each in ("is evicted", "is suspended and resumed", "is deleted")),
    *(Life(each, SERVED) for each in ("loses its reward models", "is suspended and resumed", "is deleted")),
)


EACH = 1 if os.environ.get("RLJOB_EVERY_WRITE") == "1" else 5
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


async def lived(life: Life, fates: Callable[[Call], Turn]) -> World:
    world = World()
    world.next_turn = fates
    world.user.create(**life.born)
    world.server.watchers.append(partial(checks_nodes, world))
    await world.start()
    await stories.STORIES[life.story](world)
    await world.rest()
    return world


def checks_nodes(world: World, kind: Kind, event: str, manifest: Manifest) -> None:
    """A RayCluster avoids what the status excludes when it is made."""
    if kind == RAY_CLUSTER and event == "ADDED" and (job := world.user.job) is not None:
        known = {each["name"] for each in job.get("status", {}).get("excludedNodes", ())}
        (group,) = manifest["spec"]["workerGroupSpecs"]
        assert avoided(group["template"]["spec"]) == known


def outcome(world: World) -> dict[str, Any]:
    """What somebody finds afterwards. Which events were posted is no part of it: one may be lost with its operator."""
    job = world.user.job
    status = job["status"] if job is not None else {}
    return {
        "status": {field: status.get(field) for field in ("phase", "attempt", "restarts")},
        "excluded": [each["name"] for each in status.get("excludedNodes", ())],
        "conditions": {each["type"]: (each["status"], each["reason"]) for each in status.get("conditions", ())},
        "drivers": [(driver.attempt, driver.code, driver.dead) for driver in world.heads.drivers],
        "objects": sorted((kind.name, key.name) for kind, key in world.server.objects if kind != EVENT),
    }


@pytest.mark.parametrize("fate", FATES, ids=["killed", "lost"])
@pytest.mark.parametrize("life", LIVES, ids=str)
@in_jumping_loop
async def test_whichever_write_is_the_last_one_the_life_ends_the_same(life: Life, fate: Fate) -> None:
    told = FateOfWrites()
    wanted = outcome(await lived(life, told))
    first = await beginning(life, told.writes) + (LIVES.index(life) + FATES.index(fate)) % EACH
    for number in range(first, len(told.writes), EACH):
        world = await lived(life, FateOfWrites(fate, number))
        assert outcome(world) == wanted, f"{fate.name} at {told.writes[number]}, write {number}"
        await check_silence(world)


async def beginning(life: Life, writes: list[Call]) -> int:
    """How many writes it takes until more happens than in the first life, where those are visited."""
    if life is LIVES[0]:
        return 0
    first = FateOfWrites()
    await lived(LIVES[0], first)
    return len([*takewhile(lambda pair: pair[0] == pair[1], zip(writes, first.writes, strict=False))])


@in_jumping_loop
async def test_an_attempt_that_has_begun_while_nobody_led_is_not_started_twice() -> None:
    world, submissions = World(), list[Call]()

    def turn(call: Call) -> Turn:
        if call.words.startswith("post /api/jobs"):
            submissions.append(call)
            return Turn(Fate.KILLED if len(submissions) == 1 else Fate.DONE)
        if len(submissions) == 1 and not world.trouble.faults:
            return Turn(happening=lambda: HAPPENINGS["drivers begin and are forgotten"](world))
        return Turn()

    world.user.create()
    await world.start()
    world.next_turn = turn
    await stories.finishes(world)
    assert stories.ended(world) == ("Succeeded", 2, 1)
