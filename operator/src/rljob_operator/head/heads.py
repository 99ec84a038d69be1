"""Calls head pods on behalf of their jobs: polls them at most every poll_seconds, and sends what a plan asks for.

A head that accepts a connection and never answers must not keep a worker of the queue. So a call that does not finish
within PATIENCE_SECONDS goes on beside the worker, which uses the last answer; the next look finds the new one, and does
not wait for a head that was slow the last time.
"""

import asyncio
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import aiohttp
import structlog

from rljob_api import parse_duration
from rljob_api.contract import GENERATION_VARIABLE, OWNER_VARIABLE
from rljob_operator import names
from rljob_operator.head import tokens
from rljob_operator.head.address import HeadAddress
from rljob_operator.head.agent import Agent
from rljob_operator.head.errors import HeadError
from rljob_operator.head.ray_jobs import RayJobs
from rljob_operator.head.report import HeadReport, Heard
from rljob_operator.job import Job
from rljob_operator.kube.kinds import Key
from rljob_operator.plan import Submission
from rljob_operator.settings import Settings

log = structlog.get_logger()

T = TypeVar("T")

UNAUTHORIZED = (401, 403)
"""How Ray answers a wrong token, and none; the agent answers both with 401."""

PATIENCE_SECONDS = 2.0
"""A head that works answers within this time. The clients' own deadline is longer."""


@dataclass(slots=True)
class _Pulse:
    """Signs of life of one driver, by the operator's own clock: the volume's may differ.

    heartbeat: the last that was reported. silent: seconds between looks without another one. looked: at the last time.
    """

    heartbeat: int | None = None
    silent: float = 0.0
    looked: float | None = None

    def look(self, heartbeat: int | None, longest: float) -> float:
        """Seconds of silence so far. heartbeat: None if none was reported. longest: between two looks; a longer pause
        was the operator's own.
        """
        now = _now()
        alive = heartbeat not in (None, self.heartbeat) or self.looked is None
        self.silent = 0.0 if alive else self.silent + min(now - (self.looked or 0.0), longest)
        self.heartbeat, self.looked = heartbeat or self.heartbeat, now
        return self.silent


@dataclass(slots=True)
class _Known:
    """What was heard last of one submission. until: when that is too old, by the loop's clock. asking, stopping: calls
    that are under way. slow: the last of them took long. stopped: the agent has taken the request to stop, for a driver
    that had begun.
    """

    submission: str
    until: float = 0.0
    heard: Heard = field(default_factory=Heard)
    pulse: _Pulse = field(default_factory=_Pulse)
    asking: "asyncio.Task[None] | None" = None
    stopping: "asyncio.Task[None] | None" = None
    slow: bool = False
    stopped: bool = False


class Heads:
    """session: shared by all calls."""

    def __init__(self, session: aiohttp.ClientSession, address: HeadAddress, settings: Settings) -> None:
        self._session, self._address, self._settings = session, address, settings
        self._known: dict[Key, _Known] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # the loop alone would let them be collected

    async def report(self, job: Job) -> Heard:
        """What is known of the last attempt."""
        driver, key = job.status.driver, Key(job.namespace, job.name)
        if driver is None:
            return Heard()
        known = self._known.get(key)
        if known is None or known.submission != driver.submission_id:
            known = self._known[key] = _Known(driver.submission_id)
        known.stopped = known.stopped and driver.stop_requested is not None  # else the next stop is another one
        if known.asking is None and known.until <= _now():
            known.asking = self._begin(self._ask(job, known))
        if known.asking is not None:
            await _patiently(known, known.asking)
        return known.heard

    async def submit(self, job: Job, submission: Submission) -> None:
        """Raises HeadError."""
        entrypoint = (
            f"rljob driver --job {names.JOB_FOLDER}/{names.JOB_FILE} --dir {names.VOLUME_FOLDER}"
            f" --attempt {submission.attempt}"
        )
        grace = parse_duration(job.spec.recovery.eviction_grace_period)
        variables = {OWNER_VARIABLE: job.uid}
        if submission.generation is not None:
            variables[GENERATION_VARIABLE] = f"{submission.generation}"
        try:
            await self._ray(job).submit(
                submission.id, entrypoint, stop_wait=round(grace), env_vars=variables, metadata={"rljob": job.name}
            )
        finally:  # Ray may have accepted it even if its answer was lost
            self.forget(job)

    async def stop(self, job: Job) -> None:
        """Ask for a checkpoint and the driver's end, until the agent has taken the request. A driver that does not
        react is ended with its cluster.
        """
        known = self._known.setdefault(Key(job.namespace, job.name), _Known(""))
        if known.stopped:
            return
        if known.stopping is None:
            known.stopping = self._begin(self._request_stop(job, known))
        await _patiently(known, known.stopping)

    async def _request_stop(self, job: Job, known: _Known) -> None:
        began = _now()
        try:
            await self._agent(job).request_checkpoint(stop=True)
        except HeadError as error:
            log.warning("stop_not_heard", job=f"{job.namespace}/{job.name}", reason=str(error))
        else:  # a driver that begins takes an earlier request for one to an earlier driver
            known.stopped = known.heard.head is not None and known.heard.head.begun
            self.forget(job)
        finally:
            known.slow, known.stopping = _now() - began > PATIENCE_SECONDS, None

    async def end(self, job: Job, submission: str) -> None:
        """End a driver that does not react. It may take its time: the next attempt fences it off. Raises HeadError."""
        await self._ray(job).stop(submission)
        self.forget(job)

    def _begin(self, call: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def forget(self, job: Job) -> None:
        """What is known is outdated, and so is the answer of a call that is under way."""
        if (known := self._known.get(Key(job.namespace, job.name))) is not None:
            known.heard, known.until, known.asking = Heard(), 0.0, None

    def drop(self, key: Key) -> None:
        """There is no such job any more."""
        self._known.pop(key, None)

    async def _ask(self, job: Job, known: _Known) -> None:
        began, task = _now(), asyncio.current_task()
        try:
            report, unauthorized = await self._report(job, known.submission)
            if known.asking is task:
                known.heard = self._heard(known, report, unauthorized=unauthorized)
                known.until = _now() + self._settings.poll_seconds
        finally:
            known.slow = _now() - began > PATIENCE_SECONDS
            if known.asking is task:
                known.asking = None

    def _heard(self, known: _Known, report: HeadReport | None, *, unauthorized: bool) -> Heard:
        if report is not None and report.driver is None:  # what Ray does not know gives no sign of life
            known.pulse = _Pulse()
            return Heard(report)
        heartbeat = None if report is None else report.heartbeat
        return Heard(report, known.pulse.look(heartbeat, 2 * self._settings.poll_seconds), unauthorized)

    async def _report(self, job: Job, submission: str) -> tuple[HeadReport | None, bool]:
        """And whether a server refused the token. The agent's answers complete a status; Ray's alone decide."""
        agent, refusals = self._agent(job), list[bool]()

        async def answered(call: Awaitable[T]) -> tuple[T] | None:
            try:
                return (await call,)
            except HeadError as error:
                log.info("head_unreachable", job=f"{job.namespace}/{job.name}", reason=str(error))
                refusals.append(error.status in UNAUTHORIZED)
                return None

        driver = await answered(self._ray(job).status(submission))
        if driver is None:
            return None, any(refusals)
        progress, saved, ended = await asyncio.gather(
            answered(agent.progress()), answered(agent.newest_checkpoint()), answered(agent.last_exit())
        )
        if ended is None or ended[0].owner not in (None, job.uid):  # all of it may be of an earlier job of the name
            return HeadReport(driver[0], agent=ended is not None), any(refusals)
        report = HeadReport(driver[0], progress and progress[0], saved and saved[0], empty=saved == (None,))
        (last,) = ended
        if last.attempt == job.status.attempt:  # it has begun
            report = replace(report, exit=last.exit, preflight=last.preflight, heartbeat=last.heartbeat, begun=True)
        return report, any(refusals)

    def _ray(self, job: Job) -> RayJobs:
        url = self._address.ray(job.namespace, names.ray_cluster(job.name))
        return RayJobs(self._session, url, tokens.derive(self._settings.key, job.uid, names.AUTH_TOKEN))

    def _agent(self, job: Job) -> Agent:
        url = self._address.agent(job.namespace, names.ray_cluster(job.name))
        return Agent(self._session, url, tokens.derive(self._settings.key, job.uid, names.AGENT_TOKEN))


async def _patiently(known: _Known, task: "asyncio.Task[None]") -> None:
    """Raises what the task raised, if it ended in time."""
    done, _ = await asyncio.wait([task], timeout=0.0 if known.slow else PATIENCE_SECONDS)
    for each in done:
        each.result()


def _now() -> float:
    return asyncio.get_running_loop().time()
