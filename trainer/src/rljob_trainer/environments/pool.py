"""Plays episodes in processes with the user's code. For one thread: the event loop of the rollout host.

    rollout(task, policy) ── play ──> the process with the fewest episodes ── call ──> session ── turns ──> engines
                          <── end ──                                        <─ answer ─┘
    raised, hung, lost ──> the same episode again, in a process of its own, with the same seeds
                      ──> again? environment.onError

Each process plays many episodes, so one that crashes takes others with it. In the second try an episode has a process
of its own: what fails there is its own fault, or the process was killed from outside, which allows one more try. A call
that hangs costs its process once its other episodes have ended.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import structlog

from rljob_api.durations import parse_duration
from rljob_api.v1alpha1 import BuiltinTool, Environment
from rljob_trainer.environments.conversation import Tokenized
from rljob_trainer.environments.endpoint import Access, Asked, Endpoint
from rljob_trainer.environments.environment import Policy
from rljob_trainer.environments.process import EnvironmentProcess, ProcessSettings
from rljob_trainer.environments.replies import ToCode, ToRequest, answer
from rljob_trainer.environments.session import Limits, Refused, Session
from rljob_trainer.errors import EnvironmentFailed, InfrastructureError
from rljob_trainer.paths import locate
from rljob_trainer.types import Episode, EpisodeStatus, Task

log = structlog.get_logger()

_TRIES, _LOSSES = 2, 3
"""Tries of an episode that fails, and of one whose process is lost, perhaps from outside."""

_LOAD_AGAIN_SECONDS = (1.0, 4.0, 16.0)
"""Waits for what the code needs and has lost, such as an MCP server that restarts."""


class _Failed(Exception):
    """A try that gave no episode. lost: with its process. status: of an episode that fails so."""

    def __init__(self, reason: str, *, status: EpisodeStatus = "environment_failed", lost: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.status, self.lost = reason, status, lost


class EnvironmentPool:
    """environment.Environment of a job that has one.

    tokens: most of a context. tokenized: makes the chat template and its tokenizer; called once.
    base_dir: base of relative paths. log: for the code's output; the default is the standard error of this process.
    """

    def __init__(
        self,
        spec: Environment,
        tokens: int,
        tokenized: Callable[[], Tokenized],
        base_dir: Path,
        log: Path | None = None,
    ) -> None:
        self._spec, self._make_tokenized = spec, tokenized
        self._limits = Limits(spec.max_turns, spec.max_episode_tokens or tokens, spec.on_overflow, spec.on_truncated)
        self._timeout, self._deadline = parse_duration(spec.timeout), parse_duration(spec.deadline)
        code = {name: getattr(spec, name) for name in ("path", "module", "source", "entry", "arguments", "command")}
        setup = {
            "code": code,
            "base_dir": str(base_dir.resolve()),
            "tools": spec.tools,
            "builtin_tools": [builtin_settings(tool) for tool in spec.builtin_tools],
            "mcp_servers": [server.model_dump() for server in spec.mcp_servers],
        }
        found = str(locate(spec.python, base_dir)) if spec.python and "/" in spec.python else spec.python
        self._settings = ProcessSettings(setup, found, tuple(spec.env), log)
        self._processes: list[EnvironmentProcess] = []  # that may get episodes
        self._living: set[EnvironmentProcess] = set()
        self._starting = asyncio.Lock()
        self._private = asyncio.Semaphore(spec.processes)
        self._loaded = False  # in some process
        self._endpoint = Endpoint()
        self._count = 0

    async def start(self) -> None:
        """Load the code in a first process. Raises EnvironmentFailed if that cannot be."""
        self._tokenized = self._make_tokenized()
        await self._shared()

    async def close(self) -> None:
        """Kill all processes."""
        for process in self._living:
            process.end()
        await self._endpoint.close()

    async def rollout(self, task: Task, policy: Policy) -> Episode:
        """Play one episode; one that fails again has no trajectories.

        Raises EnvironmentFailed for one if environment.onError is fail; JobError and InfrastructureError of engines.
        """
        tries = losses = 0
        while True:
            session = Session(task, policy, self._tokenized, self._limits)
            try:
                async with self._process(alone=tries + losses > 0) as process:
                    return await self._play(session, process)
            except _Failed as failed:
                tries, losses = tries + (not failed.lost), losses + failed.lost
                again = tries < _TRIES and losses < _LOSSES
                log.warning("episode_failed", task=task.id, sample=policy.sample, reason=failed.reason, again=again)
                if not again:
                    return self._left_out(session, failed)

    def _left_out(self, session: Session, failed: _Failed) -> Episode:
        if self._spec.on_error == "fail":
            raise EnvironmentFailed(
                f"it {failed.reason}, twice, for prompt {session.task.id}, sample {session.sample}: correct it, or set"
                " environment.onError: drop_episode",
                field="spec.environment",
            )
        return Episode(session.task.id, session.sample, (), failed.status, reason=failed.reason)

    # ------------------------------------------------------------------ one try

    async def _play(self, session: Session, process: EnvironmentProcess) -> Episode:
        self._count += 1
        number, task = self._count, session.task
        plain = (
            task.id, list(task.messages), task.token_ids.tolist(), task.ground_truth, dict(task.extra_info),
            task.data_source,
        )  # fmt: skip
        answering: set[asyncio.Task[None]] = set()
        inbox = process.play(number, plain, session.sample)
        access = Access(inbox)
        try:
            return await self._follow(session, process, number, access, answering)
        finally:
            self._endpoint.shut(access)
            for each in answering:
                each.cancel()
            process.forget(number)

    async def _follow(
        self, session: Session, process: EnvironmentProcess, number: int, access: Access,
        answering: "set[asyncio.Task[None]]",
    ) -> Episode:  # fmt: skip
        """Until the episode ends. The clocks run only while the policy answers nothing."""
        loop, left, inbox = asyncio.get_running_loop(), self._deadline, access.inbox
        while True:
            start, seconds = loop.time(), None if answering else min(self._timeout, left)
            try:
                message = await asyncio.wait_for(inbox.get(), seconds)
            except TimeoutError:
                raise self._late(process, left) from None
            left -= loop.time() - start if seconds is not None else 0
            match message:
                case "call", int(call), str(method), argument:
                    value = self._endpoint.open(access) if method == "endpoint" else session.call(method, argument)
                    answering.add(asyncio.create_task(answer(value, ToCode(process, number, call), inbox)))
                case (Asked() as asked,):
                    task = asyncio.create_task(answer(asked.ask(session), ToRequest(asked.reply), inbox))
                    asked.given_up(task.cancel)
                    answering.add(task)
                case "answered", done, error:
                    answering.discard(done)
                    if error is not None:
                        raise error
                case _ if (episode := _end(session, access, message)) is not None:
                    return episode

    def _late(self, process: EnvironmentProcess, left: float) -> _Failed:
        """Why a try is over whose time is. The process may hang as a whole, so it gets no further episode."""
        process.condemned = True
        if process.stopped():
            return _Failed("stopped its process", lost=True)
        limit = "deadline" if left <= self._timeout else "timeout"
        return _Failed(f"did not return within environment.{limit}", status="timed_out")

    # ------------------------------------------------------------------ processes

    @asynccontextmanager
    async def _process(self, *, alone: bool) -> AsyncIterator[EnvironmentProcess]:
        if not alone:
            yield await self._shared()
            return
        async with self._private:
            process = await self._new()
            try:
                yield process
            finally:
                process.end()

    async def _shared(self) -> EnvironmentProcess:
        """The process with the fewest episodes; another one while there may be more."""
        async with self._starting:
            self._processes = [process for process in self._processes if not process.condemned]
            free = min(self._processes, key=lambda process: len(process.playing), default=None)
            if free is not None and (not free.playing or len(self._processes) >= self._spec.processes):
                return free
            process = await self._new()
            self._processes.append(process)
            return process

    async def _new(self) -> EnvironmentProcess:
        """Another process. Raises InfrastructureError if code that was loaded before cannot be loaded again."""
        for seconds in _LOAD_AGAIN_SECONDS if self._loaded else ():
            with suppress(EnvironmentFailed):
                return await self._started()
            await asyncio.sleep(seconds)
        try:
            process = await self._started()
        except EnvironmentFailed as error:
            if self._loaded:
                raise InfrastructureError(f"an environment process cannot be replaced: {error.message}") from error
            raise
        self._loaded = True
        return process

    async def _started(self) -> EnvironmentProcess:
        self._living = {process for process in self._living if process.alive}
        process = EnvironmentProcess(self._settings)
        self._living.add(process)
        try:
            await process.start()
        except BaseException:
            process.end()
            raise
        return process


def builtin_settings(tool: BuiltinTool) -> dict[str, Any]:
    """A tool as environments.builtin reads it, with the defaults."""
    seconds = parse_duration(tool.timeout or "10s")
    return {"name": tool.name, "corpus": tool.corpus, "results": tool.results or 3, "seconds": seconds}


def _end(session: Session, access: Access, message: tuple[Any, ...]) -> Episode | None:
    """The episode, if this message ends it. Raises _Failed."""
    match message:
        case "end", reward, turn_rewards, dict(metrics):
            return _ended(session, reward, turn_rewards, metrics, access)
        case "raised", str() if access.over:  # a framework knows no EpisodeOver
            return _ended(session, None, None, {}, access)
        case "raised", str(reason):
            raise _Failed(reason)
        case "lost", str(reason):
            raise _Failed(reason, lost=True)
    return None


def _ended(
    session: Session, reward: Any, turn_rewards: Any, metrics: Mapping[str, float], access: Access
) -> Episode:  # fmt: skip
    """The user's code can write to the connection, too: what it sends may be of any type."""
    if reward is not None and access.reward is not None:
        raise _Failed("returned a reward and posted another one to the endpoint")
    try:
        numbers = {str(name): float(value) for name, value in {**access.metrics, **metrics}.items()}
        turns = None if turn_rewards is None else [float(each) for each in turn_rewards]
        return session.episode(access.reward if reward is None else float(reward), turns, numbers)
    except (Refused, TypeError, ValueError) as error:
        raise _Failed(str(error)) from error
