"""Head pods on behalf of their jobs: asked at most every poll_seconds, and told what a plan says.

A head that swallows what it is sent costs a worker of the queue the deadline of a call, 5 s. Once it has done so, it is
asked again only where one of few places is free, and else counts as silent at once; and so is who swallows only what
it is told to do. However many there are, most workers are there for other jobs.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeVar

import aiohttp
import structlog

from rljob_api import parse_duration
from rljob_api.contract import GENERATION_VARIABLE, OWNER_VARIABLE
from rljob_operator import names
from rljob_operator.head import Agent, HeadAddress, HeadError, HeadUnreachable, RayJobs, tokens
from rljob_operator.head.endpoint import DEADLINE_SECONDS
from rljob_operator.head.report import HeadReport, Heard
from rljob_operator.job import Job
from rljob_operator.kube.kinds import Key
from rljob_operator.plan import Submission
from rljob_operator.settings import Settings

log = structlog.get_logger()

T = TypeVar("T")

UNAUTHORIZED = (401, 403)
"""How Ray answers a wrong token, and none; the agent answers both with 401."""

SUSPECTS = 8
"""How many heads are asked or told at a time of those that did not answer the last time. Of 32 workers."""

SWALLOWED_SECONDS = 0.9 * DEADLINE_SECONDS
"""Who took that long did not answer one of the calls. A connection that is refused costs nobody's time."""


@dataclass(slots=True)
class _Pulse:
    """Signs of life of one driver, by our own clock: that of the volume may be another.

    heartbeat: the last that was told. silent: seconds between looks that found no other one. looked: at the last time.
    """

    heartbeat: int | None = None
    silent: float = 0.0
    looked: float | None = None

    def look(self, heartbeat: int | None, longest: float) -> float:
        """Seconds of silence so far. heartbeat: None where nobody told one. longest: between two looks; what is longer
        was a pause of ours.
        """
        now = _now()
        alive = heartbeat not in (None, self.heartbeat) or self.looked is None
        self.silent = 0.0 if alive else self.silent + min(now - (self.looked or 0.0), longest)
        self.heartbeat, self.looked = heartbeat or self.heartbeat, now
        return self.silent


@dataclass(slots=True)
class _Known:
    """What was heard last of one submission. until: when that is too old, by the loop's clock. suspect: its head did
    not answer. deaf: nor when it was told to do something; apart, for who answers what is read may still be so.
    unauthorized: it did, and refused our token. stopped: the agent has taken our request, for a driver that had begun.
    """

    submission: str
    until: float = 0.0
    heard: Heard = field(default_factory=Heard)
    pulse: _Pulse = field(default_factory=_Pulse)
    suspect: bool = False
    deaf: bool = False
    unauthorized: bool = False
    stopped: bool = False


class _NotNow(HeadUnreachable):
    """Nothing was sent: there is no place for another suspect."""


class Heads:
    """session: shared by all calls."""

    def __init__(self, session: aiohttp.ClientSession, address: HeadAddress, settings: Settings) -> None:
        self._session, self._address, self._settings = session, address, settings
        self._known: dict[Key, _Known] = {}
        self._suspects = asyncio.Semaphore(SUSPECTS)

    async def report(self, job: Job) -> Heard:
        """What is known of the last attempt."""
        driver, key = job.status.driver, Key(job.namespace, job.name)
        if driver is None:
            return Heard()
        known = self._known.get(key)
        if known is None or known.submission != driver.submission_id:
            known = self._known[key] = _Known(driver.submission_id)
        known.stopped = known.stopped and driver.stop_requested is not None  # else the next stop is another one
        if known.until <= _now():
            known.heard = await (self._hear_in_turn if known.suspect else self._hear)(job, known)
            known.until = _now() + self._settings.poll_seconds
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
            async with self._turn(job):
                await self._ray(job).submit(
                    submission.id, entrypoint, stop_wait=round(grace), env_vars=variables, metadata={"rljob": job.name}
                )
        finally:  # Ray may have taken it, also where its answer was lost
            self.forget(job)

    async def stop(self, job: Job) -> None:
        """Ask for a checkpoint and the driver's end; each time anew, until the agent has heard it.

        Who does not hear, or does not listen, is ended with its cluster.
        """
        known = self._known.get(Key(job.namespace, job.name))
        if known is not None and known.stopped:
            return
        try:
            async with self._turn(job):
                await self._agent(job).request_checkpoint(stop=True)
        except _NotNow:
            return
        except HeadError as error:
            log.warning("stop_not_heard", job=f"{job.namespace}/{job.name}", reason=str(error))
            return
        if known is not None:  # a driver that begins takes what was asked before for an earlier one's
            known.stopped = known.heard.head is not None and known.heard.head.begun
        self.forget(job)

    async def end(self, job: Job, submission: str) -> None:
        """End a driver that does not listen. It may take its time: the next attempt fences it off. Raises HeadError."""
        async with self._turn(job):
            await self._ray(job).stop(submission)
        self.forget(job)

    def forget(self, job: Job) -> None:
        """What is known is old: something was asked for."""
        if (known := self._known.get(Key(job.namespace, job.name))) is not None:
            known.until = 0.0

    def drop(self, key: Key) -> None:
        """There is no such job any more."""
        self._known.pop(key, None)

    @asynccontextmanager
    async def _turn(self, job: Job) -> AsyncIterator[None]:
        """Of a head that is told something. Raises _NotNow where it swallowed the last call, and others are in turn."""
        known = self._known.get(Key(job.namespace, job.name)) or _Known("")
        suspect = known.suspect or known.deaf
        if suspect and self._suspects.locked():
            raise _NotNow("the head did not answer the last time, and is told in its turn")
        async with self._suspects if suspect else nullcontext():
            began = _now()
            try:
                yield
            finally:
                known.deaf = _now() - began > SWALLOWED_SECONDS

    async def _hear_in_turn(self, job: Job, known: _Known) -> Heard:
        if self._suspects.locked():
            return self._heard(known, None)
        async with self._suspects:
            return await self._hear(job, known)

    async def _hear(self, job: Job, known: _Known) -> Heard:
        began = _now()
        known.unauthorized = False
        report = await self._ask(job, known)
        known.suspect = _now() - began > SWALLOWED_SECONDS
        return self._heard(known, report)

    def _heard(self, known: _Known, report: HeadReport | None) -> Heard:
        if report is not None and report.driver is None:  # whom Ray does not know has nothing to say
            known.pulse = _Pulse()
            return Heard(report)
        heartbeat = None if report is None else report.heartbeat
        return Heard(report, known.pulse.look(heartbeat, 2 * self._settings.poll_seconds), known.unauthorized)

    async def _ask(self, job: Job, known: _Known) -> HeadReport | None:
        agent = self._agent(job)
        try:
            driver = await self._ray(job).status(known.submission)
        except HeadError as error:
            log.info("head_unreachable", job=f"{job.namespace}/{job.name}", reason=str(error))
            known.unauthorized = error.status in UNAUTHORIZED
            return None
        progress, saved, ended = await asyncio.gather(
            self._quietly(job, agent.progress(), known),
            self._quietly(job, _told(agent.newest_checkpoint()), known),
            self._quietly(job, agent.last_exit(), known),
        )
        if ended is None or ended.owner not in (None, job.uid):  # all of it may be of an earlier job of the name
            return HeadReport(driver, agent=ended is not None)
        report = HeadReport(driver, progress, saved and saved[0], empty=saved == (None,))
        if ended.attempt != job.status.attempt:  # it has not begun yet
            return report
        return replace(report, exit=ended.record, heartbeat=ended.heartbeat, begun=True)

    async def _quietly(self, job: Job, call: Awaitable[T], known: _Known) -> T | None:
        """The agent's answers make a status fuller; Ray's alone decide."""
        try:
            return await call
        except HeadError as error:
            log.info("agent_unreachable", job=f"{job.namespace}/{job.name}", reason=str(error))
            known.unauthorized |= error.status in UNAUTHORIZED
            return None

    def _ray(self, job: Job) -> RayJobs:
        url = self._address.ray(job.namespace, names.ray_cluster(job.name))
        return RayJobs(self._session, url, tokens.derive(self._settings.key, job.uid, names.AUTH_TOKEN))

    def _agent(self, job: Job) -> Agent:
        url = self._address.agent(job.namespace, names.ray_cluster(job.name))
        return Agent(self._session, url, tokens.derive(self._settings.key, job.uid, names.AGENT_TOKEN))


async def _told(call: Awaitable[T]) -> tuple[T]:
    """That there is none is an answer too."""
    return (await call,)


def _now() -> float:
    return asyncio.get_running_loop().time()
