"""What is known of a head pod between two looks: whether the driver in it still lives."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import aiohttp
import pytest

from rljob_api.v1alpha1 import DriverStatus
from rljob_operator import names
from rljob_operator.head.address import HeadAddress
from rljob_operator.head.endpoint import DEADLINE_SECONDS
from rljob_operator.head.errors import HeadError
from rljob_operator.head.heads import PATIENCE_SECONDS, Heads
from rljob_operator.head.report import HeadReport, Heard
from rljob_operator.job import Job
from rljob_operator.kube.kinds import Key
from rljob_operator.plan import Submission
from tests.rljob_operator.head_support import asynchronous
from tests.rljob_operator.loops import in_jumping_loop
from tests.rljob_operator.played_driver import Driver
from tests.rljob_operator.played_head import PlayedHeads, unreachable
from tests.rljob_operator.snapshots import NOW, SETTINGS, UID, attempted, job, stamp

POLL_SECONDS = 0.05


def submitted() -> Job:
    base = job()
    return replace(base, status=base.status.model_copy(update=attempted("Submitted")))


@asynccontextmanager
async def submitted_to() -> AsyncIterator[tuple[Heads, Driver, Job, PlayedHeads]]:
    """What asks the head, the driver in it, its job, and who plays it."""
    of, settings = submitted(), SETTINGS.model_copy(update={"poll_seconds": POLL_SECONDS})
    with PlayedHeads() as played:
        head = played.add("team", names.ray_cluster("job"))
        async with aiohttp.ClientSession() as session:
            heads = Heads(session, HeadAddress(played.template), settings)
            await heads.submit(of, Submission(names.submission(UID, 1), 1, generation=4))
            yield heads, head.driver(), of, played


async def look(heads: Heads, of: Job) -> Heard:
    await asyncio.sleep(2 * POLL_SECONDS)
    return await heads.report(of)


@pytest.mark.parametrize("attempts", [1, 3])
@asynchronous
async def test_nothing_that_an_earlier_job_left_on_the_volume_is_told_of_this_one(attempts: int) -> None:
    async with submitted_to() as (heads, driver, of, _):
        variables = driver.variables
        assert (variables["RLJOB_GENERATION"], variables["RLJOB_UID"]) == ("4", UID), "it knows its own"
        volume = driver.head.volume
        volume.claims |= {number: {"attempt": number, "owner": "of another"} for number in range(1, attempts + 1)}
        volume.exits[attempts] = {"code": 0, "reason": "Done", "message": "trained to the last step"}
        volume.checkpoints.append({"step": 16, "path": "/checkpoints/step-16-a1", "time": stamp(NOW)})
        volume.progress = {"step": 16, "totalSteps": 16, "percent": 100.0}
        before = (await look(heads, of)).head
        driver.start()
        after = (await look(heads, of)).head
        assert driver.exit_code == 77
        for seen, state in ((before, "PENDING"), (after, "FAILED")):
            assert seen is not None
            assert seen == HeadReport(seen.driver)
            assert seen.driver is not None
            assert seen.driver.state == state


@asynchronous
async def test_a_frozen_driver_falls_silent_and_is_ended_by_ray() -> None:
    async with submitted_to() as (heads, driver, of, _):
        assert (await look(heads, of)).silent == 0, "it has not begun"
        driver.start()
        assert [(await look(heads, of)).silent for _ in range(4)] == [0] * 4

        driver.freeze()
        silent = [(await look(heads, of)).silent for _ in range(5)]
        assert silent == sorted(silent)
        assert silent[-1] >= 3 * POLL_SECONDS

        await heads.end(of, names.submission(UID, 1))
        assert driver.stopping


@asynchronous
async def test_who_does_not_answer_and_who_has_not_begun_are_silent_too() -> None:
    async with submitted_to() as (heads, driver, of, played):
        assert [(await look(heads, of)).silent > 0 for _ in range(3)] == [False, True, True], "it has not begun"
        driver.start()
        assert (await look(heads, of)).silent == 0
        for servers in (("agent",), ("ray",)):
            played.disturb(driver.head, unreachable, *servers)
            heard = [await look(heads, of) for _ in range(3)]
            assert [each.head is None for each in heard] == [servers == ("ray",)] * 3
            assert heard[-1].silent > heard[0].silent > 0
            played.heal(driver.head)
            assert (await look(heads, of)).silent == 0


@asynchronous
async def test_who_refuses_the_token_does_not_pass_for_who_does_not_answer() -> None:
    async with submitted_to() as (heads, driver, of, played):
        driver.start()
        heard = await look(heads, of)
        assert (heard.head is None, heard.unauthorized) == (False, False)
        driver.head.agent_token = "of another key"
        heard = await look(heads, of)
        assert (heard.head is None, heard.unauthorized) == (False, True)
        driver.head.ray_token = "of another key"
        heard = await look(heads, of)
        assert (heard.head is None, heard.unauthorized) == (True, True)
        played.disturb(driver.head, unreachable, "ray")
        heard = await look(heads, of)
        assert (heard.head is None, heard.unauthorized) == (True, False)


class Swallows:
    """A session whose servers accept everything and answer nothing."""

    @asynccontextmanager
    async def request(self, *_: Any, **__: Any) -> AsyncIterator[None]:
        await asyncio.sleep(1e9)
        yield


@in_jumping_loop
async def test_heads_that_never_answer_do_not_keep_the_workers() -> None:
    jobs = [replace(submitted(), name=f"job-{number}") for number in range(100)]
    heads = Heads(cast(aiohttp.ClientSession, Swallows()), HeadAddress(), SETTINGS)
    now, heard = asyncio.get_running_loop().time, list[Heard]()
    for look_ in range(20):
        begun = now()
        heard = await asyncio.gather(*map(heads.report, jobs))
        await asyncio.gather(*map(heads.stop, jobs))
        assert now() - begun <= (2 * PATIENCE_SECONDS if look_ == 0 else 0.0), "only the first time"
        assert {each.head for each in heard} == {None}
        await asyncio.sleep(2 * DEADLINE_SECONDS)
    assert min(each.silent for each in heard) > 17 * SETTINGS.poll_seconds


@asynchronous
async def test_a_stop_is_asked_for_until_it_is_heard_and_an_end_that_is_not_heard_is_no_end() -> None:
    async with submitted_to() as (heads, driver, of, played):
        driver.start()
        await look(heads, of)
        played.disturb(driver.head, unreachable)
        for _ in range(2):
            await heads.stop(of)
        assert driver.head.requests == []
        with pytest.raises(HeadError):
            await heads.end(of, names.submission(UID, 1))
        played.heal(driver.head)
        for _ in range(2):
            await heads.stop(of)
        assert [each["stop"] for each in driver.head.requests] == [True]
        await look(heads, of)  # it is wanted again: its status has no stop
        await heads.stop(of)
        assert [each["stop"] for each in driver.head.requests] == [True, True], "the next one is another"


@asynchronous
async def test_a_stop_that_was_asked_for_before_the_driver_began_is_asked_for_again() -> None:
    """A driver that begins takes what was asked before for an earlier one's."""
    async with submitted_to() as (heads, driver, of, _):
        stopping = replace(of, status=of.status.model_copy(update={"driver": stop_requested(of)}))
        await look(heads, stopping)
        await heads.stop(stopping)
        driver.start()
        for _ in range(3):
            await look(heads, stopping)
            await heads.stop(stopping)
        assert driver.head.volume.request is not None
        assert [each["stop"] for each in driver.head.requests] == [True, True], "and no more once it has begun"


def stop_requested(of: Job) -> DriverStatus:
    assert of.status.driver is not None
    return of.status.driver.model_copy(update={"stop_requested": NOW})


@asynchronous
async def test_what_the_volume_has_is_known_whatever_ray_has_forgotten_and_nothing_if_the_agent_is_silent() -> None:
    async with submitted_to() as (heads, driver, of, played):
        found = list[object]()

        async def see() -> None:
            seen = (await look(heads, of)).head
            assert seen is not None
            found.append((seen.begun, seen.driver is not None, seen.empty, seen.checkpoint and seen.checkpoint.step))

        await see()
        driver.start()
        driver.checkpoint(3)
        await see()
        driver.head.volume.checkpoints.clear()
        await see()
        played.disturb(driver.head, unreachable, "agent")
        await see()
        played.heal(driver.head)
        driver.head.restart()
        await see()
    assert found == [
        (False, True, True, None), (True, True, False, 3), (True, True, True, None), (False, True, False, None),
        (True, False, True, None),
    ]  # fmt: skip


@asynchronous
async def test_neither_the_next_attempt_nor_a_later_job_of_the_name_is_blamed_for_a_silence() -> None:
    async with submitted_to() as (heads, driver, of, _):
        driver.start()
        driver.freeze()
        assert of.status.driver is not None
        second = of.status.driver.model_copy(update={"submission_id": names.submission(UID, 2)})
        for after in (replace(of, status=of.status.model_copy(update={"attempt": 2, "driver": second})), of):
            while (await look(heads, of)).silent == 0:
                pass
            if after is of:
                heads.drop(Key(of.namespace, of.name))
            assert (await look(heads, after)).silent == 0
