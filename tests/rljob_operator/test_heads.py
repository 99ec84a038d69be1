"""What is known of a head pod between two looks: whether the driver in it still lives."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp

from rljob_operator import names
from rljob_operator.head import HeadAddress
from rljob_operator.heads import Heads
from rljob_operator.job import Job
from rljob_operator.kube.kinds import Key
from rljob_operator.plan import Submission
from rljob_operator.snapshot import HeadReport
from tests.rljob_operator.head_support import asynchronous
from tests.rljob_operator.played_driver import Driver
from tests.rljob_operator.played_head import PlayedHeads
from tests.rljob_operator.snapshots import SETTINGS, UID, attempted, job

POLL_SECONDS = 0.05


def submitted() -> Job:
    base = job()
    return replace(base, status=base.status.model_copy(update=attempted("Submitted")))


@asynccontextmanager
async def submitted_to() -> AsyncIterator[tuple[Heads, Driver, Job]]:
    """What asks the head, the driver in it, and its job."""
    of, settings = submitted(), SETTINGS.model_copy(update={"poll_seconds": POLL_SECONDS})
    with PlayedHeads() as played:
        head = played.add("team", names.ray_cluster("job"))
        async with aiohttp.ClientSession() as session:
            heads = Heads(session, HeadAddress(played.template), settings)
            await heads.submit(of, Submission(names.submission(UID, 1), 1))
            yield heads, head.driver(), of


async def look(heads: Heads, of: Job) -> HeadReport:
    await asyncio.sleep(2 * POLL_SECONDS)
    report = await heads.report(of)
    assert report is not None
    return report


@asynchronous
async def test_a_frozen_driver_falls_silent_and_is_ended_by_ray() -> None:
    async with submitted_to() as (heads, driver, of):
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
async def test_another_attempt_is_not_blamed_for_the_silence_of_the_one_before() -> None:
    async with submitted_to() as (heads, driver, of):
        driver.start()
        driver.freeze()
        while (await look(heads, of)).silent == 0:
            pass
        assert of.status.driver is not None
        second = of.status.driver.model_copy(update={"submission_id": names.submission(UID, 2)})
        after = replace(of, status=of.status.model_copy(update={"attempt": 2, "driver": second}))
        assert (await look(heads, after)).silent == 0


@asynchronous
async def test_nothing_is_kept_of_a_job_that_is_gone() -> None:
    async with submitted_to() as (heads, driver, of):
        driver.start()
        driver.freeze()
        while (await look(heads, of)).silent == 0:
            pass
        heads.drop(Key(of.namespace, of.name))
        assert (await look(heads, of)).silent == 0, "one of the same name is another"
