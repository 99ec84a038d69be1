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

from rljob_operator.kube.kinds import WATCHED
from tests.rljob_operator.loops import in_jumping_loop
from tests.rljob_operator.world.ending import check_end
from tests.rljob_operator.world.schedule import HAPPENINGS, OF_IMAGES, STEPS, Disturbance, Step, Turns, disturb, play
from tests.rljob_operator.world.stories import STORIES
from tests.rljob_operator.world.user import KEY, MISNAMED, MISSERVED, SERVED
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

losses = [f"a {kind} is {how}" for kind in ("head", "worker", "server") for how in ("failed", "gone")]
of_images = (
    st.sampled_from(OFTEN)
    | st.sampled_from(list(OF_IMAGES))
    | st.sampled_from([*losses, "suspend", "resume", "a driver ends with 75", "the operator restarts", "30 s pass"])
    | st.sampled_from(
        [f"the watch of {kind}s {what}" for kind in WATCHED for what in ("breaks", "stalls", "tells one")]
    )
)


@drawn
@given(
    schedule=st.lists(st.just("all goes well"), max_size=2).flatmap(
        lambda begun: st.lists(steps, max_size=25).map(lambda then: [*begun, *then])
    ),
    born=births,
    prompt=st.booleans(),
    namespaces=scopes,
)
@example(
    schedule=["all goes well"] * 3 + ["the operator lists and is refused", "more steps", "look again"],
    born={},
    prompt=True,
    namespaces=(KEY.namespace, "another"),
)
@example(
    schedule=["all goes well", "the operator's Role is gone", "a worker is gone"], born={}, prompt=True, namespaces=()
)
@example(
    schedule=["all goes well"] * 2 + ["the operator's Role is gone", "a head is gone"],
    born={},
    prompt=True,
    namespaces=(),
)
@in_jumping_loop
async def test_any_schedule_keeps_the_invariants_and_ends_well(
    schedule: Sequence[Step], born: Mapping[str, Any], prompt: bool, namespaces: Sequence[str]
) -> None:
    world = World(namespaces)
    world.user.create(**born)
    await world.start()
    await world.settle()
    await play(world, schedule, prompt=prompt)
    await check_end(world)


@drawn
@given(
    story=st.sampled_from(list(STORIES)),
    served=st.booleans(),
    troubles=st.lists(disturbances, min_size=1, max_size=5),
    namespaces=scopes,
)
@example(story="loses its head while servers load", served=True, troubles=[(60, "DONE", "nothing")], namespaces=())
@example(story="forgets its driver", served=False, troubles=[(30, "DONE", "delete")], namespaces=())
@in_jumping_loop
async def test_any_life_that_is_disturbed_keeps_the_invariants_and_ends_well(
    story: str, served: bool, troubles: Sequence[Disturbance], namespaces: Sequence[str]
) -> None:
    world = World(namespaces)
    world.user.create(**(SERVED if served else {}))
    await world.start()
    await world.settle()
    disturb(world, troubles)
    await STORIES[story](world)
    await check_end(world)


MENDED_UNSEEN = (
    "the watch of Pods stalls", "the watches tell all", "look again", "KubeRay reconciles",
    "Deployments are reconciled", "nodes act", "nodes act", "images are mended, and the job goes on",
    "the watches tell all", "look again", "the watches work", "the watches tell all", "look again",
)  # fmt: skip
"""Pods are told of that lack an image, when the job names another one and others are to be made."""


@drawn
@given(
    begun=st.integers(0, 2),
    schedule=st.lists(of_images, min_size=5, max_size=25),
    born=st.sampled_from([{}, SERVED, MISNAMED | {"suspend": True}, MISSERVED | {"suspend": True}]),
    prompt=st.booleans(),
)
@example(begun=0, schedule=MENDED_UNSEEN, born=MISNAMED, prompt=True)
@example(begun=0, schedule=MENDED_UNSEEN, born=MISSERVED, prompt=True)
@in_jumping_loop
async def test_any_trouble_with_images_keeps_the_invariants_and_ends_well(
    begun: int, schedule: Sequence[Step], born: Mapping[str, Any], prompt: bool
) -> None:
    """Among all that may happen it is rare that a pod starts while it cannot pull."""
    world = World()
    world.user.create(**born)
    await world.start()
    await world.settle()
    await play(world, ["all goes well"] * begun + [*schedule], prompt=prompt)
    await check_end(world)
