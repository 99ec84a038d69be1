"""Plays the episodes of orders: task -> environment -> episodes -> scorer -> teacher -> journal -> group.

One thread runs an event loop with a coroutine for each group and for each of its episodes. Other threads ask through
`begin`, `news` and `deliver`. Groups that end while the journal is written go to it together with the next write.
"""

import asyncio
import hashlib
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from rljob_trainer.engines.calls import Delivery
from rljob_trainer.engines.engine import Completion
from rljob_trainer.engines.engine_host import EngineProcess
from rljob_trainer.environments.environment import Environment
from rljob_trainer.errors import InfrastructureError
from rljob_trainer.rewards.scorer import Scorer
from rljob_trainer.rollouts.calls import NO_CACHE_USE, CacheUse, GroupRef, News, Order, PolicyName, Purpose
from rljob_trainer.rollouts.engine_time import EngineTime
from rljob_trainer.rollouts.generation import Context, Generation
from rljob_trainer.types import Episode, Group, Ids, Sampling, Task
from rljob_trainer.workers.worker import Worker

T = TypeVar("T")


class Diary(Protocol):
    """The journal of finished episodes that are not scored yet; called in threads.

    find_played: the episode of a task and a sample, if it was played for the same policy before.
    """

    def find_played(self, order: Order, task: Task, sample: int) -> Episode | None: ...

    def keep_played(self, order: Order, task: Task, episode: Episode) -> None: ...


Teach = Callable[[Group], Awaitable[Group]]
"""Adds what a teacher's server says of a group's tokens."""

Keep = Callable[[Order, Sequence[Group]], list[GroupRef]]
"""Makes finished groups safe and returns their references; called in a thread of its own."""


def turn_seed(job_seed: int, task_id: str, sample: int, turn: int) -> int:
    """The seed of one turn, in [0, 2**63): the same in every process, attempt and Python version.

    It does not depend on the step: when a group is made, the step that will use it is unknown.
    """
    name = f"{job_seed}/{task_id}/{sample}/{turn}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1


@dataclass(slots=True)
class EpisodePolicy:
    """environment.Policy of one episode.

    heard: called with each completion and the tokens of its prompt.
    shares: episodes of a task that ask for the same turn share a request.
    trains: whether the episode is for the loss.
    """

    generation: Generation
    task: Task
    sample: int
    sampling: Sampling
    seed: int
    heard: Callable[[Completion, int], None]
    shares: bool = True
    trains: bool = True
    turn: int = 0
    context: Context = field(default_factory=Context)

    @property
    def temperature(self) -> float:
        return self.sampling.temperature

    @property
    def max_tokens(self) -> int:
        return self.sampling.max_tokens

    async def generate(
        self, token_ids: Ids, max_tokens: int | None = None, stop: tuple[str, ...] = ()
    ) -> Completion:  # fmt: skip
        seed = turn_seed(self.seed, self.task.id, self.sample, self.turn)
        owner = f"{self.task.id}/{self.turn}" if self.shares else f"{self.task.id}/{self.sample}/{self.turn}"
        most = self.sampling.max_tokens if max_tokens is None else max_tokens
        sampling = replace(self.sampling, max_tokens=most, stop=(*self.sampling.stop, *stop))
        self.turn += 1
        completion = await self.generation.generate(owner, token_ids, sampling, seed, self.context)
        self.heard(completion, len(token_ids))
        return completion

    def restart(self) -> None:
        self.turn = 0


@dataclass(slots=True)
class _OrderState:
    """An order on its way. groups: in the order in which they were finished. error: what ended it.

    engines: in which they have requests; began_at: its seconds at the order. generated, engine_seconds: News has them.
    cancelling: what cancels the rest of it after an error.
    """

    order: Order
    engines: EngineTime
    began_at: float
    started: float = field(default_factory=time.monotonic)
    generated: float = 0.0
    engine_seconds: float = 0.0
    cache: CacheUse = NO_CACHE_USE
    groups: list[GroupRef] = field(default_factory=list)
    plays: "list[asyncio.Task[None]]" = field(default_factory=list)
    finished: list[Group] = field(default_factory=list)
    keeping: bool = False
    error: BaseException | None = None
    cancelling: "asyncio.Task[None] | None" = None

    def has(self, enough: int | None) -> bool:
        """Whether so many groups are finished; None: all."""
        return len(self.groups) >= min(len(self.order.tasks), enough or len(self.order.tasks))

    def heard(self, completion: Completion, prompt_tokens: int) -> None:
        self.generated = time.monotonic() - self.started
        self.engine_seconds = self.engines.seconds() - self.began_at
        if completion.cached_tokens is not None:
            prompts, found = self.cache
            self.cache = CacheUse(prompts + prompt_tokens, found + completion.cached_tokens)


class Episodes:
    """The orders of a rollout host.

    seed: rollout.seed. keep: see Keep. All public methods are safe from any thread.
    shares: of each EpisodePolicy. Environments whose turns come at any time share no request in a deterministic run:
        the rounding of a deterministic engine depends on how many samples a request has.
    diary: None for episodes that take one turn: their group is journaled whole.
    teach: None without a teacher's server. Groups of a validation have no use for it.
    """

    def __init__(
        self, environment: Environment, scorer: Scorer, generation: Generation, seed: int, keep: Keep, *,
        shares: bool = True, diary: Diary | None = None, teach: Teach | None = None,
    ) -> None:  # fmt: skip
        self._environment, self._scorer, self._generation = environment, scorer, generation
        self._seed, self._keep, self._shares = seed, keep, shares
        self._diary, self._teach = diary, teach
        self._orders: dict[int, _OrderState] = {}
        self._count = 0
        self._changed = threading.Condition()
        self._engine_failed: tuple[str, str] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="episodes", daemon=True)
        self._thread.start()

    def attach(self, engines: Mapping[str, Worker[EngineProcess]]) -> None:
        self._engine_failed = None
        self.run(self._attach(engines))

    async def _attach(self, engines: Mapping[str, Worker[EngineProcess]]) -> None:
        self._generation.attach(engines)

    def detach(self) -> None:
        """Forget validations, and send no request until `attach`; engines finish the requests that they have."""
        self.run(self._detach())

    async def _detach(self) -> None:
        await self._end(None, "validation")
        self._generation.detach()

    def begin(self, order: Order, made: Sequence[GroupRef]) -> int:
        """Play the tasks of `order` but those of `made`. Returns its number."""
        return self.run(self._begin(order, made))

    async def _begin(self, order: Order, made: Sequence[GroupRef]) -> int:
        self._count += 1
        number = self._count
        engines = self._generation.time
        state = self._orders[number] = _OrderState(order, engines, engines.seconds(), groups=list(made))
        known = {group.summary.task_id for group in made}
        state.plays = [asyncio.create_task(self._play(state, task)) for task in order.tasks if task.id not in known]
        return number

    def same(self, order: Order) -> int | None:
        """The number of the order that is the same, if there is one that was not ended."""
        for number, state in list(self._orders.items()):
            if state.error is None and _name(state.order) == _name(order):
                return number
        return None

    def end(self, others_than: PolicyName | None = None) -> None:
        """Forget the orders that are not for the policy `others_than`."""
        self.run(self._end(others_than))

    async def _end(self, others_than: PolicyName | None, purpose: Purpose | None = None) -> None:
        for number, state in list(self._orders.items()):
            if state.order.policy != others_than and purpose in (None, state.order.purpose):
                del self._orders[number]
                await (state.cancelling or self._cancel(state))

    def abort(self, number: int) -> None:
        """Forget one order, whatever of it is not finished."""
        self.run(self._abort(number))

    async def _abort(self, number: int) -> None:
        if (state := self._orders.pop(number, None)) is not None:
            await (state.cancelling or self._cancel(state))

    async def _cancel(self, state: _OrderState) -> None:
        for play in state.plays:
            play.cancel()
        await asyncio.gather(*state.plays, return_exceptions=True)
        self._generation.forget_cancelled()

    def news(self, number: int, seen: int, seconds: float, enough: int | None = None) -> News:
        """The groups behind the first `seen`, once `enough` (by default all) are finished, or after `seconds`.

        Raises what ended the order.
        """
        state = self._orders.get(number)
        if state is None:
            raise InfrastructureError(f"order {number} was ended by a later one")
        with self._changed:
            self._changed.wait_for(lambda: state.has(enough) or state.error or self._engine_failed, seconds)
            if state.error is not None:
                raise state.error
            return News(state.groups[seen:], state.generated, self._engine_failed, state.cache, state.engine_seconds)

    def deliver(self, delivery: Delivery) -> None:
        self._loop.call_soon_threadsafe(self._deliver, delivery)

    def _deliver(self, delivery: Delivery) -> None:
        error = delivery.error
        try:
            self._generation.deliver(delivery)
        except InfrastructureError as wrong:
            error = wrong
        if isinstance(error, InfrastructureError):
            with self._changed:
                self._engine_failed = delivery.engine, error.message
                self._changed.notify_all()
        elif error is not None:
            for state in self._orders.values():
                self._fail(state, error)

    def close(self) -> None:
        """End all orders and the thread."""
        self.end()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # ------------------------------------------------------------------ in the event loop

    async def _play(self, state: _OrderState, task: Task) -> None:
        order = state.order
        greedy = [replace(order.sampling, temperature=0.0, top_p=1.0, top_k=-1)] if order.baseline else []
        trained = order.samples if order.purpose == "training" else 0
        policies = [
            EpisodePolicy(
                self._generation, task, sample, sampling, self._seed, state.heard, self._shares, sample < trained
            )
            for sample, sampling in enumerate([order.sampling] * order.samples + greedy)
        ]
        try:
            episodes = await _together([self._episode(order, task, policy) for policy in policies])
            group = await self._scored(task, episodes[: order.samples], episodes[order.samples :])
            if self._teach is not None and order.purpose == "training" and group.error is None:
                group = await self._teach(group)
            group = group.with_response()
            state.finished.append(group)  # behind the await: the list is another one meanwhile
            if not state.keeping:
                await self._keep_finished(state)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  the driver must see it
            self._fail(state, error)

    async def _episode(self, order: Order, task: Task, policy: EpisodePolicy) -> Episode:
        """Played now, or before by a host that is lost."""
        if self._diary is None or order.purpose != "training":
            return await self._environment(task, policy)
        found = await asyncio.to_thread(self._diary.find_played, order, task, policy.sample)
        if found is not None:
            return found
        episode = await self._environment(task, policy)
        await asyncio.to_thread(self._diary.keep_played, order, task, episode)
        return episode

    async def _scored(self, task: Task, episodes: list[Episode], baseline: list[Episode]) -> Group:
        """baseline: none, or the one. Functions that compare a group's responses see it alone."""
        if not baseline:
            return await self._scorer.score(task, episodes)
        group, alone = await asyncio.gather(self._scorer.score(task, episodes), self._scorer.score(task, baseline))
        return replace(group, error=group.error or alone.error, baseline=alone.episodes[0])

    async def _keep_finished(self, state: _OrderState) -> None:
        """Journal what is finished, until nothing is; one write at a time."""
        state.keeping = True
        try:
            while state.finished:
                groups, state.finished = state.finished, []
                kept = await asyncio.to_thread(self._keep, state.order, groups)
                with self._changed:
                    state.groups += kept
                    self._changed.notify_all()
        finally:
            state.keeping = False

    def _fail(self, state: _OrderState, error: BaseException) -> None:
        """End an order: the driver reads the error, and nothing more is generated for it."""
        if state.error is not None:
            return
        with self._changed:
            state.error = error
            self._changed.notify_all()
        state.cancelling = asyncio.create_task(self._cancel(state))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the thread of the episodes."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _together(episodes: Sequence[Awaitable[Episode]]) -> list[Episode]:
    """All episodes; if one fails, the others are cancelled."""
    playing = [asyncio.ensure_future(episode) for episode in episodes]
    try:
        return await asyncio.gather(*playing)
    finally:
        for each in playing:
            each.cancel()


def _name(order: Order) -> tuple[object, ...]:
    """Equal for orders that make the same groups."""
    tasks = tuple(task.id for task in order.tasks)
    return order.purpose, order.policy, tasks, order.samples, order.sampling, order.baseline
