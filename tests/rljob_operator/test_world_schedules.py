"""Whatever happens, in whatever order: the invariants hold, and once nothing goes wrong any more all ends well.

Hypothesis writes the schedules and shrinks those that break something. What it prints as the falsifying example is a
list of words: `@example(...)` with it plays it again.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rljob_operator.kube.kinds import POD_GROUPS
from tests.rljob_operator.loops import in_jumping_loop
from tests.rljob_operator.world.ending import check_end
from tests.rljob_operator.world.schedule import (
    HAPPENINGS,
    OF_GANGS,
    OF_IMAGES,
    OF_KUEUE,
    STEPS,
    WATCHES,
    Disturbance,
    Step,
    Turns,
    disturb,
    play,
)
from tests.rljob_operator.world.stories import STORIES
from tests.rljob_operator.world.user import KEY, MISNAMED, MISSERVED, QUEUED, SERVED, ganged
from tests.rljob_operator.world.wire import Fate
from tests.rljob_operator.world.world import World

EXAMPLES = int(os.environ.get("RLJOB_SCHEDULES", "20"))
"""Of each test; `make test-slow` takes 100. More of them are other ones."""

pytestmark = pytest.mark.timeout(max(300, 2 * EXAMPLES))
"""The alarm would strike somewhere within an operator, which is then said to have missed something."""

drawn = settings(
    derandomize=True, max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)  # fmt: skip

OFTEN = ("all goes well", "KubeRay reconciles", "nodes act", "drivers work", "the watches tell all", "look again")

happenings = st.just("nothing") | st.sampled_from(list(HAPPENINGS))
turns = st.tuples(st.just("DONE") | st.sampled_from([fate.name for fate in Fate]), happenings)
steps = st.sampled_from(OFTEN) | st.sampled_from(list(STEPS)) | st.builds(Turns, st.lists(turns, max_size=8).map(tuple))
births = st.sampled_from([{}, {}, {"suspend": True}, {"activeDeadline": "10m"}, SERVED, SERVED | {"suspend": True}])
scopes = st.sampled_from([(), (KEY.namespace, "another")])
disturbances = st.tuples(
    st.integers(0, 60), st.just("DONE") | st.sampled_from([fate.name for fate in Fate]), happenings
)

TOLD = ("stalls", "breaks", "tells one")
losses = [f"a {kind} is {how}" for kind in ("head", "worker", "server") for how in ("failed", "gone")]
of_watches = st.sampled_from([f"the watch of {these} {what}" for these in WATCHES for what in TOLD])
of_images = (
    st.sampled_from(OFTEN)
    | st.sampled_from(list(OF_IMAGES))
    | st.sampled_from([*losses, "suspend", "resume", "a driver ends with 75", "the operator restarts", "30 s pass"])
    | of_watches
)
AROUND = (
    *losses, "suspend", "resume", "delete", "create", "other shape", "another server", "an API of tomorrow",
    "the API of today", "30 s pass", "a driver ends with 0", "a driver ends with 75", "the operator restarts",
    "what was late arrives", "the watches work",
)  # fmt: skip


def beside(*happening: str) -> st.SearchStrategy[Step]:
    """What happens, among much else."""
    calls = st.builds(Turns, st.lists(turns, max_size=8).map(tuple))
    return st.sampled_from(OFTEN) | st.sampled_from(happening) | st.sampled_from(AROUND) | of_watches | calls


async def begun(namespaces: Sequence[str] = (), **born: Any) -> World:
    world = World(namespaces)
    world.user.create(**born)
    await world.start()
    await world.settle()
    return world


WELL = "all goes well"
first_well = st.lists(st.just(WELL), max_size=2)
REFUSED = [WELL] * 3 + ["the operator lists and is refused", "more steps", "look again"]
NO_ROLE: Any = [[WELL, "the operator's Role is gone", "a worker is gone"],
                [WELL, WELL, "the operator's Role is gone", "a head is gone"]]  # fmt: skip


@drawn
@given(
    schedule=first_well.flatmap(lambda begun: st.lists(steps, max_size=25).map(lambda then: [*begun, *then])),
    born=births, prompt=st.booleans(), namespaces=scopes,
)  # fmt: skip
@example(schedule=REFUSED, born={}, prompt=True, namespaces=(KEY.namespace, "another"))
@example(schedule=NO_ROLE[0], born={}, prompt=True, namespaces=())
@example(schedule=NO_ROLE[1], born={}, prompt=True, namespaces=())
@in_jumping_loop
async def test_any_schedule_keeps_the_invariants_and_ends_well(
    schedule: Sequence[Step], born: Mapping[str, Any], prompt: bool, namespaces: Sequence[str]
) -> None:
    world = await begun(namespaces, **born)
    await play(world, schedule, prompt=prompt)
    await check_end(world)


@drawn
@given(
    story=st.sampled_from(list(STORIES)), served=st.booleans(), queued=st.booleans(), namespaces=scopes,
    gang=st.sampled_from(["none", *POD_GROUPS]), troubles=st.lists(disturbances, min_size=1, max_size=5),
)  # fmt: skip
@example(
    story="loses its head while servers load",
    served=True,
    queued=False,
    gang="none",
    troubles=[(60, "DONE", "nothing")],
    namespaces=(),
)
@example(
    story="forgets its driver", served=False, queued=False, gang="none", troubles=[(30, "DONE", "delete")],
    namespaces=(),
)  # fmt: skip
@example(
    story="loses its PodGroup and its head", served=True, queued=False, gang="native", namespaces=(),
    troubles=[(60, "DONE", "nothing")],
)  # fmt: skip
@in_jumping_loop
async def test_any_life_that_is_disturbed_keeps_the_invariants_and_ends_well(
    story: str, served: bool, queued: bool, gang: str, troubles: Sequence[Disturbance], namespaces: Sequence[str]
) -> None:
    world = await begun(namespaces, **ganged(gang), **(SERVED if served else {}), **(QUEUED if queued else {}))
    disturb(world, troubles)
    await STORIES[story](world)
    await check_end(world)


@drawn
@given(
    schedule=st.lists(beside(*OF_KUEUE), min_size=5, max_size=30), prompt=st.booleans(), well=first_well,
    born=st.sampled_from([QUEUED, QUEUED | SERVED, QUEUED | {"suspend": True}]),
)  # fmt: skip
@in_jumping_loop
async def test_any_trouble_with_quota_keeps_the_invariants_and_ends_well(
    well: list[Step], schedule: Sequence[Step], born: Mapping[str, Any], prompt: bool
) -> None:
    world = await begun(**born)
    await play(world, [*well, *schedule], prompt=prompt)
    await check_end(world)


SMALLER = ("another server at once", "a worker is failed", "a driver ends with 75")
REGROUPED = (WELL, WELL, "another gang scheduler at once")
"""The driver does not listen, so the RayCluster goes; the earlier PodGroup still has pods."""


@drawn
@given(
    schedule=st.lists(beside(*OF_GANGS, "Kueue evicts: Preempted", "Kueue admits nothing"), min_size=5, max_size=30),
    prompt=st.booleans(), well=first_well, scheduler=st.sampled_from([*POD_GROUPS]),
    born=st.sampled_from([{}, SERVED, QUEUED, QUEUED | SERVED, {"suspend": True}]),
)  # fmt: skip
@example(well=[WELL] * 2, schedule=SMALLER, prompt=True, scheduler="native", born=SERVED)
@example(well=[WELL] * 2, schedule=REGROUPED, prompt=True, scheduler="volcano", born=SERVED)
@example(well=[WELL] * 2, schedule=REGROUPED, prompt=True, scheduler="native", born={})
@in_jumping_loop
async def test_any_trouble_with_gangs_keeps_the_invariants_and_ends_well(
    well: list[Step], schedule: Sequence[Step], scheduler: str, born: Mapping[str, Any], prompt: bool
) -> None:
    world = await begun(**born, **ganged(scheduler))
    await play(world, [*well, *schedule], prompt=prompt)
    await check_end(world)


MENDED_UNSEEN = (
    "the watch of Pods stalls", "the watches tell all", "look again", "KubeRay reconciles",
    "Deployments are reconciled", "nodes act", "nodes act", "images are mended, and the job goes on",
    "the watches tell all", "look again", "the watches work", "the watches tell all", "look again",
)  # fmt: skip
"""Pods lack an image, as the watches report, when the job names another one and others are to be made."""


@drawn
@given(
    well=first_well, schedule=st.lists(of_images, min_size=5, max_size=25), prompt=st.booleans(),
    born=st.sampled_from([{}, SERVED, MISNAMED | {"suspend": True}, MISSERVED | {"suspend": True}]),
)  # fmt: skip
@example(well=[], schedule=MENDED_UNSEEN, born=MISNAMED, prompt=True)
@example(well=[], schedule=MENDED_UNSEEN, born=MISSERVED, prompt=True)
@in_jumping_loop
async def test_any_trouble_with_images_keeps_the_invariants_and_ends_well(
    well: list[Step], schedule: Sequence[Step], born: Mapping[str, Any], prompt: bool
) -> None:
    """Among all that may happen it is rare that a pod starts while it cannot pull."""
    world = await begun(**born)
    await play(world, [*well, *schedule], prompt=prompt)
    await check_end(world)
