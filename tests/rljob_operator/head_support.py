"""Clients for tests, which pytest runs without an event loop."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import aiohttp

from rljob_operator.head.agent import Agent
from rljob_operator.head.ray_jobs import RayJob, RayJobs
from tests.rljob_operator.loops import in_loop

PATIENCE = 240.0
"""Deadline of everything that must happen; a test that is right never waits for it."""

T = TypeVar("T")

asynchronous = in_loop


@asynccontextmanager
async def ray_jobs(url: str, token: str = "r", deadline: float = PATIENCE) -> AsyncIterator[RayJobs]:
    async with aiohttp.ClientSession() as session:
        yield RayJobs(session, url, token, deadline)


@asynccontextmanager
async def agent(url: str, token: str = "a", deadline: float = PATIENCE) -> AsyncIterator[Agent]:
    async with aiohttp.ClientSession() as session:
        yield Agent(session, url, token, deadline)


async def poll(look: Callable[[], Awaitable[T]], enough: Callable[[T], object]) -> T:
    """What `look` gives as soon as it is `enough`."""
    deadline = time.monotonic() + PATIENCE
    while not enough(seen := await look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {PATIENCE:g} s it still is {seen}")
        await asyncio.sleep(0.05)
    return seen


async def finished(jobs: RayJobs, submission_id: str) -> RayJob:
    job = await poll(lambda: jobs.status(submission_id), lambda job: job is None or job.state.is_final)
    assert job is not None
    return job
