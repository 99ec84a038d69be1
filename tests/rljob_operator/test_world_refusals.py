"""Jobs one of whose objects the API server does not take, or does not let go, for as long as it likes."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from rljob_operator.kube.errors import KubeError
from rljob_operator.kube.kinds import CONFIG_MAP, EVENT, POD, RAY_CLUSTER, Key
from rljob_operator.reconcile import FAILING_SECONDS, NAME_SECONDS
from rljob_operator.runtime.logging import severity
from rljob_operator.runtime.queue import Backoff
from tests.rljob_operator.loops import in_jumping_loop
from tests.rljob_operator.world import process, stories
from tests.rljob_operator.world.clock import seconds
from tests.rljob_operator.world.user import KEY, SERVED
from tests.rljob_operator.world.wire import REFUSALS, Call, Fate, Turn
from tests.rljob_operator.world.world import World, undisturbed

CONFIG = Key(KEY.namespace, "job-job")


@pytest.fixture(autouse=True)
def real_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to five minutes, as that of the operator."""
    monkeypatch.setattr(process, "BACKOFF", Backoff(part=max))


def meets(fate: Fate, words: str = "") -> Callable[[Call], Turn]:
    """words: of the calls that meet the fate; else all of the API server."""
    return lambda call: Turn(fate) if call.words == words or (not words and call.kube) else undisturbed(call)


async def born(turn: Callable[[Call], Turn] = undisturbed, attempt: int = 0, **spec: object) -> World:
    """A job that its operator sees for the first time; and that runs, if it has an attempt."""
    world = World()
    await world.start()
    world.user.create(**spec)
    world.next_turn = turn
    if attempt:
        await stories.attempt(world, attempt)
    return world


async def passes(world: World, length: float, *, drivers: bool = False) -> None:
    begun = seconds()
    while seconds() - begun < length:
        await world.live(drivers=drivers)


def ready(world: World) -> tuple[str, str]:
    """Phase, and the reason of Ready; empty before there is any."""
    status = (world.user.job or {}).get("status", {})
    return str(status.get("phase", "")), next((each["reason"] for each in status.get("conditions", ())), "")


def counted(world: World, words: str) -> int:
    return [call.words for call in world.calls].count(words)


def events(world: World, reason: str) -> int:
    return [each["reason"] for each in world.server.all(EVENT)].count(reason)


def failing(world: World) -> set[Key]:
    return {key for key, memory in world.process._reconciler.memories.items() if memory.failing is not None}


@in_jumping_loop
async def test_an_invalid_reward_model_fails_a_new_job_which_gives_its_cluster_back() -> None:
    world = await born(meets(Fate.INVALID, "apply Deployment"), **SERVED)
    assert await world.until(lambda: ready(world) == ("Failed", "ObjectInvalid"))
    assert counted(world, "apply Deployment") == 1, "it is seen at the first look"
    assert await world.until(lambda: world.server.find(RAY_CLUSTER, KEY) is None)


@in_jumping_loop
async def test_a_job_that_runs_is_looked_at_as_often_as_ever_although_an_object_is_refused() -> None:
    world = await born(attempt=1)
    world.server.patch(CONFIG_MAP, CONFIG, {"metadata": {"ownerReferences": None}})
    await passes(world, 1200.0)
    assert ready(world) == ("Running", "NameTaken")
    (driver,) = world.heads.living()
    world.heads.step(driver)
    asked = seconds()

    def reported() -> bool:
        return (world.user.job or {})["status"].get("progress", {}).get("step") == driver.step

    assert await world.until(reported, drivers=False)
    assert seconds() - asked <= 2 * process.SETTINGS.poll_seconds
    world.user.change(suspend=True)
    assert await world.until(lambda: driver.volume.asked, drivers=False)
    assert await world.until(lambda: stories.phase(world) == "Suspended")
    assert driver.volume.durable_step == driver.step


def said_aloud(lines: Sequence[Mapping[str, Any]], failures: Sequence[BaseException]) -> list[str]:
    """What of the log a level of info shows, as `main` writes it."""
    aloud = [str(line["event"]) for line in lines if line["log_level"] != "debug"]
    return aloud + [f"{error}" for error in failures if severity(error) > logging.DEBUG]


@pytest.mark.parametrize("fate", [Fate.FORBIDDEN, Fate.INVALID], ids=lambda fate: fate.name)
@in_jumping_loop
async def test_a_refusal_is_one_line_however_often_it_is_tried_and_another_one_when_it_comes_again(fate: Fate) -> None:
    world, failures = await born(attempt=1), list[BaseException]()
    world.process.queue._failed = lambda _key, error, _seconds: failures.append(error)
    for _ in range(2):
        world.next_turn, failures[:] = meets(fate, "apply ConfigMap"), []
        world.server.delete(world.server.get(CONFIG_MAP, CONFIG))
        with capture_logs() as lines:
            await passes(world, 300.0)
        assert len(lines) > 3
        assert any(isinstance(error, KubeError) for error in failures)
        assert said_aloud(lines, failures) == ["object_refused"]
        world.next_turn = undisturbed
        await passes(world, 300.0)
        assert world.server.find(CONFIG_MAP, CONFIG) is not None


@in_jumping_loop
async def test_a_name_that_was_taken_is_soon_tried_again_however_long_it_was_taken() -> None:
    """No watch reports that it is free: the object was not the job's."""
    world = World()
    theirs = world.server.create(CONFIG_MAP.manifest({"namespace": KEY.namespace, "name": "job-job"}))
    world.user.create()
    await world.start()
    await passes(world, 3600.0, drivers=True)
    world.server.delete(theirs)
    asked = seconds()
    assert await world.until(lambda: world.server.find(RAY_CLUSTER, KEY) is not None)
    assert seconds() - asked <= 2 * NAME_SECONDS


@in_jumping_loop
async def test_a_job_that_is_deleted_goes_in_time_although_its_cluster_may_not() -> None:
    world = await born(attempt=1)
    world.next_turn = meets(Fate.FORBIDDEN, "delete RayCluster")
    world.user.delete()
    begun = seconds()
    assert await world.until(lambda: world.user.job is None, drivers=False)
    late = seconds() - begun - process.SETTINGS.deletion_seconds
    assert 0 <= late <= process.SETTINGS.poll_seconds


@pytest.mark.parametrize("fate", [Fate.FORBIDDEN, Fate.FAILED], ids=lambda fate: fate.name)
@in_jumping_loop
async def test_a_restart_counts_and_a_job_goes_on_although_no_event_may_be_posted(fate: Fate) -> None:
    world = await born(meets(fate, "post Event"))
    await stories.fails_and_recovers(world)
    assert stories.phase(world) == "Succeeded"
    assert world.process.restarted == ["Infrastructure"]
    assert counted(world, "post Event") > 1


FAILS = [(each, 500) for each in ("patch RLJob", "apply ConfigMap", "post Secret", "post RayCluster")]


@pytest.mark.parametrize(("words", "code"), [*FAILS, ("post RayCluster", 404)])
@in_jumping_loop
async def test_a_new_job_says_what_the_api_server_fails_at_and_goes_on_when_that_is_over(
    words: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REFUSALS, Fate.FAILED, (code, "so it was fated"))
    world = await born(meets(Fate.FAILED, words))
    await passes(world, 60.0)
    assert ready(world) == ("Starting", "ObjectFailing")
    await passes(world, 1200.0)
    assert ready(world) == ("Starting", "ObjectFailing")
    assert (events(world, "ObjectFailing"), counted(world, "patch RLJob status")) == (1, 1), "however often it is tried"
    world.next_turn = undisturbed
    await stories.succeeds(world)
    assert not failing(world)


@in_jumping_loop
async def test_what_it_fails_at_for_a_moment_is_not_said_however_often_it_is_tried() -> None:
    world = await born(meets(Fate.FAILED, "apply ConfigMap"))
    await world.deliver()
    for _ in range(20):
        await asyncio.sleep(FAILING_SECONDS / 50)
        world.process.queue.add(KEY)  # news
        await world.settle()
    assert counted(world, "apply ConfigMap") > 10
    world.next_turn = undisturbed
    await stories.attempt(world, 1)
    await passes(world, 60.0)
    assert events(world, "ObjectFailing") == 0


@pytest.mark.parametrize("words", ["apply PodDisruptionBudget", "apply ConfigMap"])
@in_jumping_loop
async def test_a_job_that_runs_is_suspended_although_the_api_server_fails_at_one_of_its_objects(words: str) -> None:
    world = await born(attempt=1)
    world.next_turn = meets(Fate.FAILED, words)
    world.server.delete(world.server.get(CONFIG_MAP, CONFIG))
    await passes(world, 120.0)
    world.user.change(suspend=True)
    assert await world.until(lambda: stories.phase(world) == "Suspended")
    assert world.server.find(RAY_CLUSTER, KEY) is None
    assert not world.server.all(POD)
    world.user.delete()
    assert await world.until(lambda: world.user.job is None)
    assert not failing(world)


@in_jumping_loop
async def test_a_job_whose_cluster_goes_with_its_crd_says_so_and_goes_on_when_that_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(REFUSALS, Fate.FAILED, (404, "NotFound"))
    world = await born(attempt=1)
    world.next_turn = lambda call: Turn(Fate.FAILED) if call.words.endswith(" RayCluster") else undisturbed(call)
    world.trouble.cluster_is_deleted()
    await passes(world, 120.0)
    assert ready(world) == ("Recovering", "ObjectFailing")
    world.next_turn = undisturbed
    await stories.succeeds(world)


@in_jumping_loop
async def test_nothing_is_said_of_an_object_where_the_whole_api_server_is_away() -> None:
    world = await born(attempt=1)
    world.next_turn = meets(Fate.FAILED)
    world.server.delete(world.server.get(CONFIG_MAP, CONFIG))
    await passes(world, 600.0)
    world.next_turn = undisturbed
    await stories.succeeds(world)
    assert events(world, "ObjectFailing") == 0


FINALIZER = {Fate.FORBIDDEN: "ObjectForbidden", Fate.INVALID: "ObjectInvalid", Fate.FAILED: "ObjectFailing"}


@pytest.mark.parametrize("fate", FINALIZER, ids=lambda fate: fate.name)
@in_jumping_loop
async def test_a_finalizer_that_is_not_taken_is_said_and_forgotten_with_the_job(fate: Fate) -> None:
    world = await born(meets(fate, "patch RLJob"))
    assert await world.until(lambda: ready(world)[1] == FINALIZER[fate])
    assert not world.server.all(POD)
    world.user.delete()
    assert await world.until(lambda: world.user.job is None)
    await world.live()
    assert not failing(world)
