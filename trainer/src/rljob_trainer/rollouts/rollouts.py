"""From prompts to scored groups. Engines generate, the scorer scores each group the moment it is finished.

journal ────────────────group───────────────────────> done
engine 0 ──groups──> scorer ──summaries──> engine 0 ──> done      the groups' tensors stay in the object store
engine 1 ──groups──> scorer ──summaries──> engine 1 ──> done

The scorer journals a group before it answers, and engines ask it themselves, so what is finished is safe even where the
driver is gone. An engine or a scorer that is lost costs what was unfinished.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from rljob_trainer.bridge import call
from rljob_trainer.engines.engine_host import BundleResult, EngineHost
from rljob_trainer.errors import EngineLost, InfrastructureError, RewardsLost, WorkerLost
from rljob_trainer.journal import GroupKey, Journal
from rljob_trainer.old_types import Group, GroupSummary, Prompt, Sampling
from rljob_trainer.rewards.scorer import GroupScorer
from rljob_trainer.rollouts.engine_group import EngineGroup
from rljob_trainer.rollouts.repair import Repair
from rljob_trainer.workers.groups import Scorer
from rljob_trainer.workers.heartbeats import Heartbeats
from rljob_trainer.workers.waiting import LOOK_SECONDS, cause_of, first_line, wait_for
from rljob_trainer.workers.worker import Worker


@dataclass(frozen=True, slots=True)
class GroupRef:
    """Where a group's tensors are: its index in a bundle of groups that came together."""

    bundle: "ray.ObjectRef[Sequence[Group]]"
    index: int


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A group's tensors by reference, and what the controller knows of it."""

    place: GroupRef
    summary: GroupSummary


@dataclass(frozen=True, slots=True)
class Order:
    """Groups to make. seeds: [prompts][samples per prompt].

    key: what the groups are for; None for a validation, whose groups are not journaled.
    """

    prompts: Sequence[Prompt]
    seeds: Sequence[Sequence[int]]
    sampling: Sampling
    key: GroupKey | None

    def without(self, ids: set[str]) -> "Order":
        left = [i for i, prompt in enumerate(self.prompts) if prompt.id not in ids]
        return replace(self, prompts=[self.prompts[i] for i in left], seeds=[self.seeds[i] for i in left])

    def share(self, index: int, shares: int) -> "Order":
        return replace(self, prompts=self.prompts[index::shares], seeds=self.seeds[index::shares])


@dataclass(frozen=True, slots=True)
class Rollout:
    """generate_seconds: until the last response was finished.

    journaled: groups that an earlier attempt, or an engine that was lost since, had finished.
    """

    groups: list[ScoredGroup]
    generate_seconds: float
    journaled: int


class Rollouts:
    """Makes groups, whatever happens to engines and scorer meanwhile.

    ready: makes sure that the engines hold the policy; called before they generate. seconds: deadline of one order.
    """

    def __init__(
        self, engines: EngineGroup, scorer: Scorer, journal: Journal, repair: Repair, heartbeats: Heartbeats,
        ready: Callable[[], object], seconds: float,
    ) -> None:  # fmt: skip
        self._engines, self._scorer, self._journal, self._repair = engines, scorer, journal, repair
        self._heartbeats, self._ready, self._seconds = heartbeats, ready, seconds

    def collect(self, order: Order) -> Rollout:
        """One scored group for each prompt, in their order.

        Raises InfrastructureError when the deadline passes, RewardError as the reward's policy says.
        """
        deadline = time.monotonic() + self._seconds
        collection = _Collection(order, self._journal, self._heartbeats)
        self._repair.run(lambda: self._try(collection, deadline))
        groups = [collection.done[prompt.id] for prompt in order.prompts]
        return Rollout(groups, collection.generate_seconds, collection.journaled)

    def has(self, step: int, policy_digest: str) -> bool:
        """Whether the journal holds groups of that step by that policy."""
        return self._journal.holds(step, policy_digest)

    def _try(self, collection: "_Collection", deadline: float) -> None:
        if collection.tried:  # a lost engine's finished groups may be on their way into the journal
            settling = self._scorer.worker.call(GroupScorer.settle)
            wait_for(settling, deadline - time.monotonic(), "the groups that are being scored", self._heartbeats.check)
        missing = collection.missing()
        collection.score_again(self._scorer.worker)
        if missing.prompts:
            self._ready()
            collection.generate(missing, self._engines.workers, self._scorer.worker, self._seconds)
        collection.receive(deadline)
        while collection.unscored:  # engines still went to a scorer that was replaced meanwhile
            collection.score_again(self._scorer.worker)
            collection.receive(deadline)


@dataclass(slots=True)
class _Stream:
    """What an engine was asked for. scorer: which it goes to. bundle: the one that came without its note so far."""

    engine: str
    scorer: Worker[Any]
    prompts: set[str]
    bundle: Any = None


@dataclass(slots=True)
class _Collection:
    """One order on its way. It survives repairs: what comes from others meanwhile is kept.

    unscored: groups whose score got lost, by prompt. scores: those that are scored again, by the call.
    scorer: the present one. scorer_failed: it lost a score.
    """

    order: Order
    journal: Journal
    heartbeats: Heartbeats
    done: dict[str, ScoredGroup] = field(default_factory=dict)
    unscored: dict[str, GroupRef] = field(default_factory=dict)
    streams: dict[Any, _Stream] = field(default_factory=dict)
    scores: dict[Any, dict[str, GroupRef]] = field(default_factory=dict)
    generate_seconds: float = 0.0
    journaled: int = 0
    tried: bool = False
    scorer: Worker[Any] | None = None
    scorer_failed: bool = False

    def missing(self) -> Order:
        """What nobody makes now and nobody has made before."""
        if self.tried:  # then a worker was lost, perhaps after it had journaled what we did not hear of
            self.journal.refresh()
        self.tried = True
        under_way = self.done.keys() | {prompt_id for places in self.scores.values() for prompt_id in places}
        rest = self.order.without(under_way.union(*(stream.prompts for stream in self.streams.values())))
        key = self.order.key
        if key is not None and self.journal.holds(key.step, key.policy_digest):
            self._find(rest.prompts, key)
        return rest.without(self.done.keys() | self.unscored.keys())

    def _find(self, prompts: Sequence[Prompt], key: GroupKey) -> None:
        for prompt in prompts:
            if found := self.journal.find(key, prompt):
                self.done[prompt.id] = ScoredGroup(GroupRef(ray.put(found[:1]), 0), found[1])
                self.unscored.pop(prompt.id, None)
                self.journaled += 1

    def score_again(self, scorer: Worker[Any]) -> None:
        self.scorer, self.scorer_failed = scorer, False
        bundles: dict[Any, dict[str, GroupRef]] = {}
        for prompt_id, place in self.unscored.items():
            bundles.setdefault(place.bundle, {})[prompt_id] = place
        for bundle, places in bundles.items():
            only = [place.index for place in places.values()]
            self.scores[call(scorer, "score", bundle, self.order.key, only)] = places
        self.unscored = {}

    def generate(self, order: Order, engines: Sequence[Worker[Any]], scorer: Worker[Any], seconds: float) -> None:
        shares = min(len(engines), len(order.prompts))
        for index, engine in enumerate(engines[:shares]):
            share = order.share(index, shares)
            stream = engine.stream(
                EngineHost.generate, scorer, share.prompts, share.sampling, share.seeds, share.key, seconds
            )
            self.streams[stream] = _Stream(engine.name, scorer, {prompt.id for prompt in share.prompts})

    def receive(self, deadline: float) -> None:
        """Until nobody makes anything.

        Raises the scorer's loss at once, an engine's when all others are done or the scorer is lost too.
        """
        lost: WorkerLost | None = None
        while self.streams or self.scores:
            left = deadline - time.monotonic()
            ready, _ = ray.wait([*self.streams, *self.scores], timeout=max(0.0, min(left, LOOK_SECONDS)))
            if not ready and left <= 0:
                raise self._late()
            try:
                self._take(ready[0]) if ready else self.heartbeats.check()
            except EngineLost as found:
                self._forget(found.worker)
                lost = found
            except RewardsLost:
                if lost is None:
                    raise
                raise lost from None  # nobody listens to that engine any more, so it must not go on
        if lost is None and self.scorer_failed:
            lost = self.heartbeats.diagnose() or RewardsLost("rewards lost a score", worker="rewards")
        if lost is not None:
            raise lost

    def _take(self, ready: Any) -> None:
        if ready in self.streams:
            self._take_item(ready, self.streams[ready])
        else:
            self._take_score(ready)

    def _take_item(self, generator: Any, stream: _Stream) -> None:
        """A bundle, the note that follows it, or the end; how an engine failed is in the last item."""
        item = next(generator, None)
        try:
            if item is None:
                del self.streams[generator]
                if stream.bundle is not None:  # no bundle, then, but the error that ended the stream
                    ray.get(stream.bundle)
            elif stream.bundle is None:
                stream.bundle = item
            else:
                self._take_note(ray.get(item), stream)
        except RayTaskError as error:
            raise cause_of(error) from None
        except RayError as error:
            raise EngineLost(f"{stream.engine} died: {first_line(error)}", worker=stream.engine) from error

    def _take_note(self, note: BundleResult, stream: _Stream) -> None:
        places = {prompt_id: GroupRef(stream.bundle, index) for index, prompt_id in enumerate(note.prompt_ids)}
        if note.summaries is not None:
            self._add(places, note.summaries)
        else:
            self.unscored |= places
            self.scorer_failed = self.scorer_failed or stream.scorer is self.scorer
        stream.prompts.difference_update(places)
        stream.bundle = None
        self.generate_seconds = max(self.generate_seconds, note.generated)

    def _take_score(self, ref: Any) -> None:
        places = self.scores.pop(ref)
        try:
            self._add(places, ray.get(ref))
        except RayTaskError as error:
            raise cause_of(error) from None
        except RayError as error:
            self.unscored |= places
            raise RewardsLost(f"rewards died: {first_line(error)}", worker="rewards") from error

    def _add(self, places: Mapping[str, GroupRef], summaries: Sequence[GroupSummary]) -> None:
        for (prompt_id, place), summary in zip(places.items(), summaries, strict=True):
            self.done[prompt_id] = ScoredGroup(place, summary)

    def _forget(self, engine: str) -> None:
        """Nothing more comes from that engine."""
        self.streams = {generator: stream for generator, stream in self.streams.items() if stream.engine != engine}

    def _late(self) -> InfrastructureError:
        missing = len(self.order.prompts) - len(self.done)
        return InfrastructureError(
            f"{missing} of {len(self.order.prompts)} groups of responses are missing at spec.rollout.deadline: "
            f"raise it if they take that long ({self.heartbeats.doing()})"
        )
