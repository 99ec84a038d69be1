"""Jobs one of whose objects the API server does not take, or does not let go, for as long as it likes."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
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


@pytest.fixture(autouse=True)
def real_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to five minutes, as that of the operator."""
    monkeypatch.setattr(process, "BACKOFF", Backoff())
    monkeypatch.setattr("random.uniform", lambda _low, high: high)


def answered(words: str, fate: Fate, call: Call) -> Turn:
    return Turn(fate) if call.words == words else undisturbed(call)


def told(world: World) -> int | None:
    """The step that the status says."""
    status = (world.user.job or {}).get("status", {})
    return status.get("progress", {}).get("step")


async def born(world: World, **spec: object) -> None:
    """With an operator that sees it for the first time."""
    turn = world.next_turn
    await world.start()
    world.user.create(**spec)
    world.next_turn = turn


@in_jumping_loop
async def test_an_invalid_reward_model_fails_a_new_job_which_gives_its_cluster_back() -> None:
    world = World()
    world.next_turn = lambda call: answered("apply Deployment", Fate.INVALID, call)
    await born(world, **SERVED)
    assert await world.until(lambda: stories.phase(world) == "Failed")
    assert world.user.job is not None
    failed = next(each for each in world.user.job["status"]["conditions"] if each["type"] == "Failed")
    assert failed["reason"] == "ObjectInvalid"
    assert [call.words for call in world.calls].count("apply Deployment") == 1, "it is seen at the first look"
    assert await world.until(lambda: world.server.find(RAY_CLUSTER, KEY) is None)


@in_jumping_loop
async def test_a_job_that_runs_is_looked_at_as_often_as_ever_although_an_object_is_refused() -> None:
    world = World()
    await born(world)
    await stories.attempt(world, 1)
    world.server.patch(CONFIG_MAP, Key(KEY.namespace, "job-job"), {"metadata": {"ownerReferences": None}})
    await is_looked_at_and_suspended(world, "NameTaken")


def said_aloud(lines: Sequence[Mapping[str, Any]], failures: Sequence[BaseException]) -> list[str]:
    """What of the log a level of info shows, as `main` writes it."""
    aloud = [str(line["event"]) for line in lines if line["log_level"] != "debug"]
    return aloud + [f"{error}" for error in failures if severity(error) > logging.DEBUG]


@pytest.mark.parametrize("fate", [Fate.FORBIDDEN, Fate.INVALID], ids=lambda fate: fate.name)
@in_jumping_loop
async def test_a_refusal_is_one_line_however_often_it_is_tried_and_another_one_when_it_comes_again(fate: Fate) -> None:
    world, failures = World(), list[BaseException]()
    await born(world)
    await stories.attempt(world, 1)
    world.process.queue._failed = lambda _key, error, _seconds: failures.append(error)
    for _ in range(2):
        world.next_turn, failures[:] = (lambda call: answered("apply ConfigMap", fate, call)), []
        world.server.delete(world.server.get(CONFIG_MAP, Key(KEY.namespace, "job-job")))
        with capture_logs() as lines:
            await passes(world, 300.0)
        assert len(lines) > 3
        assert any(isinstance(error, KubeError) for error in failures)
        assert said_aloud(lines, failures) == ["object_refused"]
        world.next_turn = undisturbed
        await passes(world, 300.0)
        assert world.server.find(CONFIG_MAP, Key(KEY.namespace, "job-job")) is not None


async def passes(world: World, length: float) -> None:
    begun = seconds()
    while seconds() - begun < length:
        await world.live(drivers=False)


async def is_looked_at_and_suspended(world: World, reason: str) -> None:
    """After a long time in which an object is refused."""
    await passes(world, 1200.0)
    assert world.user.job is not None
    said = next(each for each in world.user.job["status"]["conditions"] if each["type"] == "Ready")
    assert (said["status"], said["reason"]) == ("True", reason)
    world.heads.step(world.heads.living()[0])
    step = world.heads.living()[0].step
    asked = seconds()
    assert await world.until(lambda: told(world) == step, drivers=False)
    assert seconds() - asked <= 2 * process.SETTINGS.poll_seconds

    world.user.change(suspend=True)
    volume = world.heads.living()[0].volume
    assert await world.until(lambda: volume.asked, drivers=False)
    assert stories.phase(world) == "Suspending"
    assert await world.until(lambda: stories.phase(world) == "Suspended")
    assert volume.durable_step == step


@in_jumping_loop
async def test_a_name_that_was_taken_is_soon_tried_again_however_long_it_was_taken() -> None:
    """No watch tells that it is free: the object was not the job's."""
    world = World()
    theirs = world.server.create(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": KEY.namespace, "name": "job-job"}}
    )
    await born(world)
    begun = seconds()
    while seconds() - begun < 3600.0:
        await world.live()
    world.server.delete(theirs)
    asked = seconds()
    assert await world.until(lambda: world.server.find(RAY_CLUSTER, KEY) is not None)
    assert seconds() - asked <= 2 * NAME_SECONDS


@in_jumping_loop
async def test_a_job_that_is_deleted_goes_in_time_although_its_cluster_may_not() -> None:
    world = World()
    await born(world)
    await stories.attempt(world, 1)
    world.next_turn = lambda call: answered("delete RayCluster", Fate.FORBIDDEN, call)
    world.user.delete()
    begun = seconds()
    assert await world.until(lambda: world.user.job is None, drivers=False)
    late = seconds() - begun - process.SETTINGS.deletion_seconds
    assert 0 <= late <= process.SETTINGS.poll_seconds


@pytest.mark.parametrize("fate", [Fate.FORBIDDEN, Fate.FAILED], ids=lambda fate: fate.name)
@in_jumping_loop
async def test_a_restart_counts_and_a_job_goes_on_although_no_event_may_be_posted(fate: Fate) -> None:
    world = World()
    world.next_turn = lambda call: answered("post Event", fate, call)
    await born(world)
    await stories.fails_and_goes_on(world)
    assert stories.phase(world) == "Succeeded"
    assert world.process.restarted == ["Infrastructure"]
    assert [call.words for call in world.calls].count("post Event") > 1


def ready(world: World) -> tuple[str, str]:
    """Phase, and the reason of Ready; empty before there is any."""
    status = (world.user.job or {}).get("status", {})
    return str(status.get("phase", "")), next((each["reason"] for each in status.get("conditions", ())), "")


def events(world: World, reason: str) -> int:
    return [each["reason"] for each in world.server.all(EVENT)].count(reason)


def failing(world: World) -> set[Key]:
    return {key for key, memory in world.process._reconciler.memories.items() if memory.failing is not None}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        *((words, 500) for words in ("patch RLJob", "apply ConfigMap", "post Secret", "post RayCluster")),
        ("post RayCluster", 404),
    ],
)
@in_jumping_loop
async def test_a_new_job_says_what_the_api_server_fails_at_and_goes_on_when_that_is_over(
    words: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REFUSALS, Fate.FAILED, (code, "so it was fated"))
    world = World()
    world.next_turn = lambda call: answered(words, Fate.FAILED, call)
    await born(world)
    await passes(world, 60.0)
    assert ready(world) == ("Starting", "ObjectFailing")
    await passes(world, 1200.0)
    assert ready(world) == ("Starting", "ObjectFailing")
    assert events(world, "ObjectFailing") == 1
    written = [call.words for call in world.calls].count("patch RLJob status")
    assert written == 1, "it is told once, however often it is tried"

    world.next_turn = undisturbed
    assert await world.until(lambda: stories.phase(world) == "Succeeded")
    assert not failing(world)


@in_jumping_loop
async def test_what_it_fails_at_for_a_moment_is_not_said_however_often_it_is_tried() -> None:
    world = World()
    world.next_turn = lambda call: answered("apply ConfigMap", Fate.FAILED, call)
    await born(world)
    await world.deliver()
    for _ in range(20):
        await asyncio.sleep(FAILING_SECONDS / 50)
        world.process.queue.add(KEY)  # news
        await world.settle()
    assert [call.words for call in world.calls].count("apply ConfigMap") > 10
    world.next_turn = undisturbed
    await stories.attempt(world, 1)
    await passes(world, 2 * FAILING_SECONDS)
    world.next_turn = lambda call: answered("apply PodDisruptionBudget", Fate.FAILED, call)
    world.process.queue.add(KEY)
    await world.settle()
    world.next_turn = undisturbed
    await passes(world, 60.0)
    assert events(world, "ObjectFailing") == 0


@pytest.mark.parametrize("words", ["apply PodDisruptionBudget", "apply ConfigMap"])
@in_jumping_loop
async def test_a_job_that_runs_is_suspended_although_the_api_server_fails_at_one_of_its_objects(words: str) -> None:
    world = World()
    await born(world)
    await stories.attempt(world, 1)
    world.next_turn = lambda call: answered(words, Fate.FAILED, call)
    world.server.delete(world.server.get(CONFIG_MAP, Key(KEY.namespace, "job-job")))
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
    world = World()
    await born(world)
    await stories.attempt(world, 1)
    world.next_turn = lambda call: Turn(Fate.FAILED) if call.words.endswith(" RayCluster") else undisturbed(call)
    world.trouble.cluster_is_deleted()
    await passes(world, 120.0)
    assert ready(world) == ("Recovering", "ObjectFailing")
    world.next_turn = undisturbed
    assert await world.until(lambda: stories.phase(world) == "Succeeded")


@in_jumping_loop
async def test_nothing_is_said_of_an_object_where_the_whole_api_server_is_away() -> None:
    world = World()
    await born(world)
    await stories.attempt(world, 1)
    world.next_turn = lambda call: Turn(Fate.FAILED) if call.kube else undisturbed(call)
    world.server.delete(world.server.get(CONFIG_MAP, Key(KEY.namespace, "job-job")))
    await passes(world, 600.0)
    world.next_turn = undisturbed
    assert await world.until(lambda: stories.phase(world) == "Succeeded")
    assert events(world, "ObjectFailing") == 0


FINALIZER = {Fate.FORBIDDEN: "ObjectForbidden", Fate.INVALID: "ObjectInvalid", Fate.FAILED: "ObjectFailing"}


@pytest.mark.parametrize("fate", FINALIZER, ids=lambda fate: fate.name)
@in_jumping_loop
async def test_a_finalizer_that_is_not_taken_is_said_and_forgotten_with_the_job(fate: Fate) -> None:
    world = World()
    world.next_turn = lambda call: answered("patch RLJob", fate, call)
    await born(world)
    assert await world.until(lambda: ready(world)[1] == FINALIZER[fate])
    assert not world.server.all(POD)
    world.user.delete()
    assert await world.until(lambda: world.user.job is None)
    await world.live()
    assert not failing(world)
