"""Turns of episodes in, completions of engines out. For one thread: the event loop of the rollout host.

    generate ─┐                                                        ┌─> engine 0
    generate ─┼─ one tick ─> Request(prompt, n seeds) ─> queue ── the least loaded
    generate ─┘                                                        └─> engine 1
    deliver(completions) ──> the episodes that wait

Calls of one owner in one tick of the event loop that have the same tokens become one request: its samples share the
prompt. An engine gets what it can run and a little more; the rest waits here for the engine that is first to have room,
because the lengths of samples are unknown. Later turns of an episode go to the engine whose prefix cache has the former
ones. If an engine is lost, what it had not finished goes to another one.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rljob_trainer.engines.calls import Delivery, Subscriber
from rljob_trainer.engines.engine import Completion, Request
from rljob_trainer.engines.engine_host import EngineProcess
from rljob_trainer.errors import InfrastructureError
from rljob_trainer.rollouts.engine_time import EngineTime
from rljob_trainer.types import Ids, Sampling
from rljob_trainer.workers.worker import Worker

AHEAD = 1.25
"""Samples that an engine has, as a multiple of those that it runs at once: a message may take some decode steps."""

BUSIER = 1.25
"""Multiple of the mean engine's work above which an engine gets no turn for having its context. Not tuned."""


@dataclass(slots=True)
class Context:
    """Where the keys and values of one episode are. engine: identity of the one that computed its last turn, if any."""

    engine: str | None = None


@dataclass(frozen=True, slots=True)
class _Turn:
    """One call of generate. owner: whose turns may share a request."""

    owner: str
    token_ids: Ids
    sampling: Sampling
    seed: int
    context: Context
    future: "asyncio.Future[Completion]"


@dataclass(slots=True)
class _Pending:
    """A request and the turns that wait for its samples, [n]. engine: identity of the one that has it."""

    request: Request
    turns: list[_Turn]
    engine: str | None = None

    @property
    def unfinished(self) -> int:
        return sum(not turn.future.done() for turn in self.turns)

    @property
    def tokens(self) -> int:
        """That an engine may have to compute for it, at most."""
        return len(self.request.token_ids) + self.unfinished * self.request.sampling.max_tokens


@dataclass(slots=True)
class _Load:
    """What an engine has not finished."""

    samples: int = 0
    tokens: int = 0

    def add(self, pending: _Pending) -> None:
        self.samples += pending.unfinished
        self.tokens += pending.tokens


class Generation:
    """The engines that are attached, and what they were asked for.

    knows: whether the run has a policy of that version.
    whole_requests: a request that moves to another engine moves with all its samples, also those that are finished:
        the rounding of a deterministic engine depends on how many there are.
    runs: samples that an engine runs at once; None: engines get all requests at once.
    time: in which its engines have requests.
    """

    def __init__(
        self, subscriber: Subscriber, knows: Callable[[int], bool], *, whole_requests: bool, runs: int | None = None
    ) -> None:
        self._subscriber, self._knows, self._whole_requests = subscriber, knows, whole_requests
        self._most = None if runs is None else int(AHEAD * runs)
        self.time = EngineTime()
        self._engines: dict[str, Worker[EngineProcess]] = {}
        self._waiting: list[_Turn] = []
        self._pending: dict[str, _Pending] = {}
        self._queue: deque[_Pending] = deque()  # those that no engine has yet
        self._count = 0

    async def generate(
        self, owner: str, token_ids: Ids, sampling: Sampling, seed: int, context: Context | None = None
    ) -> Completion:
        """The completion of these tokens [T].

        owner: names the turn of one task; see the module. context: what it continues; a new one by default.
        """
        loop = asyncio.get_running_loop()
        turn = _Turn(owner, token_ids, sampling, seed, context or Context(), loop.create_future())
        if not self._waiting:
            loop.call_soon(self._flush)
        self._waiting.append(turn)
        return await turn.future

    def attach(self, engines: Mapping[str, Worker[EngineProcess]]) -> None:
        """Generate with these engines, {identity: worker}, from now on."""
        self._engines = dict(engines)
        self.time.attach(len(engines))
        self.forget_cancelled()
        for worker in engines.values():
            worker.call_beside("inbox", EngineProcess.subscribe, self._subscriber)
        moved = [name for name, pending in self._pending.items() if pending.engine not in engines]
        self._queue.clear()
        self._send([self._again(self._take(name)) for name in moved])

    def detach(self) -> None:
        """Send no request until `attach`; engines finish the requests that they have."""
        self._engines = {}

    def deliver(self, delivery: Delivery) -> None:
        """Hand completions to the turns that wait for them; late ones of a moved request have none.

        Raises InfrastructureError if the engine sampled with a policy that the run does not have.
        """
        for completion in delivery.completions:
            pending = self._pending.get(completion.request_id)
            if pending is None:
                continue
            if unknown := [version for version in set(completion.versions.tolist()) if not self._knows(version)]:
                raise InfrastructureError(f"{delivery.engine} sampled with the unknown policy version {unknown[0]}")
            turn = pending.turns[completion.sample]
            if not turn.future.done():
                turn.context.engine = pending.engine
                turn.future.set_result(completion)
            if not pending.unfinished:
                self._take(completion.request_id)
        self._dispatch()

    def forget_cancelled(self) -> None:
        """Abort requests whose turns were all cancelled."""
        gone = [name for name, pending in self._pending.items() if not pending.unfinished]
        by_engine: dict[str, list[str]] = {}
        for name in gone:
            by_engine.setdefault(self._take(name).engine or "", []).append(name)
        for identity, names in by_engine.items():
            if engine := self._engines.get(identity):
                engine.call_beside("inbox", EngineProcess.abort, self._subscriber.incarnation, names)

    def _take(self, name: str) -> _Pending:
        """Out of those that are pending."""
        pending = self._pending.pop(name)
        if pending.engine is not None:
            self.time.end(pending.engine)
        return pending

    def _flush(self) -> None:
        shared: dict[tuple[str, bytes, Sampling], list[_Turn]] = {}
        for turn in self._waiting:
            if not turn.future.done():
                shared.setdefault((turn.owner, turn.token_ids.tobytes(), turn.sampling), []).append(turn)
        self._waiting = []
        self._send([self._request(turns) for turns in shared.values()])

    def _request(self, turns: list[_Turn]) -> _Pending:
        self._count += 1
        first = turns[0]
        seeds = tuple(turn.seed for turn in turns)
        name = f"{self._subscriber.incarnation}/{self._count}"  # an engine may still send what a lost host asked for
        return _Pending(Request(name, first.token_ids, first.sampling, seeds), turns)

    def _again(self, pending: _Pending) -> _Pending:
        turns = pending.turns if self._whole_requests else [turn for turn in pending.turns if not turn.future.done()]
        return self._request(turns)

    def _send(self, requests: Sequence[_Pending]) -> None:
        self._pending |= {pending.request.id: pending for pending in requests}
        self._queue += requests
        self._dispatch()

    def _dispatch(self) -> None:
        """Give requests to engines, while one has room."""
        if not self._queue:
            return
        loads = {identity: _Load() for identity in self._engines}
        for pending in self._pending.values():
            if pending.engine in loads:
                loads[pending.engine].add(pending)
        batches: dict[str, list[Request]] = {}
        while self._queue and (identity := self._engine_for(self._queue[0], loads)) is not None:
            pending = self._queue.popleft()
            if pending.request.id in self._pending:  # else all its turns were cancelled
                pending.engine = identity
                self.time.begin(identity)
                loads[identity].add(pending)
                batches.setdefault(identity, []).append(pending.request)
        for identity, batch in batches.items():
            self._engines[identity].call_beside("inbox", EngineProcess.submit, self._subscriber.incarnation, batch)

    def _engine_for(self, pending: _Pending, loads: Mapping[str, _Load]) -> str | None:
        """The one that has its context, unless BUSIER forbids it; else the one with the fewest unfinished tokens.

        None if no engine has room.
        """
        able = {each: load for each, load in loads.items() if self._most is None or load.samples < self._most}
        last = pending.turns[0].context.engine
        if last in able and able[last].tokens <= BUSIER * fmean(load.tokens for load in loads.values()):
            return last
        return min(able, key=lambda each: able[each].tokens, default=None)
