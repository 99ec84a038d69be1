"""The Ray worker of a rollout engine. Light, because the driver imports it."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError, RayTaskError

from rljob_trainer.bridge import call
from rljob_trainer.compute.freed_memory import keep_freed_memory
from rljob_trainer.engines.engine import EngineSettings, import_engine
from rljob_trainer.engines.engine_worker import RolloutWorker
from rljob_trainer.errors import InfrastructureError, JobError
from rljob_trainer.old_types import Group, GroupSummary, Prompt, Sampling
from rljob_trainer.workers.host import Host
from rljob_trainer.workers.waiting import cause_of

if TYPE_CHECKING:
    from rljob_trainer.journal import GroupKey
    from rljob_trainer.workers.worker import Worker


LOOK_SECONDS = 0.02
"""How often an engine looks for scores between groups: a look costs a millisecond."""

BUNDLE_SECONDS = 0.2
"""How long a finished group waits for others to go to a busy scorer with; an engine that dies takes it along."""


@dataclass(frozen=True, slots=True)
class BundleResult:
    """What the driver learns of a bundle. summaries: of its groups; None where the scorer was lost.

    generated: seconds from the call to its last group.
    """

    prompt_ids: tuple[str, ...]
    summaries: list[GroupSummary] | None
    generated: float


@dataclass(slots=True)
class _Bundle:
    """Groups that are scored together, and their scores to come. told: the driver has the groups."""

    groups: tuple[Group, ...]
    scores: Any
    generated: float
    told: bool = False

    def note(self) -> BundleResult:
        return BundleResult(tuple(group.prompt.id for group in self.groups), _summaries(self.scores), self.generated)


class EngineHost(Host):
    """A rollout engine that hands finished groups to the scorer by itself: that goes on when the driver is gone."""

    worker: RolloutWorker

    def create(self, settings: EngineSettings, threads: int) -> RolloutWorker:
        """Imports what the engine needs, while others still read data and weights."""
        self._wanted = False
        with suppress(JobError):  # vLLM is missing: start says so
            import_engine(settings.kind, settings.device)
        if settings.device == "cpu":
            import torch

            keep_freed_memory()
            torch.set_num_threads(threads)
        return RolloutWorker(settings)

    def claimed(self) -> None:
        """What runs for the driver before goes on where its groups are journaled; nobody reads the others."""
        if not self._wanted:
            self.worker.abandon()

    def generate(
        self, scorer: "Worker[Any]", prompts: Sequence[Prompt], sampling: Sampling, seeds: Sequence[Sequence[int]],
        key: "GroupKey | None", seconds: float,
    ) -> Iterator[Any]:  # fmt: skip
        """Yield for each bundle of groups the groups themselves and then, once they are scored, its note.

        What is finished while the scorer is busy goes to it as one bundle: a message costs milliseconds, so many small
        groups must not cost as many messages.

        key: under which the scorer journals the groups; None for a validation.
        seconds: how long to wait for a score when all is generated; a driver that gives up does so by itself.
        """
        self._wanted = key is not None
        start = time.monotonic()
        finished: list[Group] = []
        asked: deque[_Bundle] = deque()

        def ask() -> None:
            groups = tuple(finished)
            finished.clear()
            asked.append(_Bundle(groups, call(scorer, "score", groups, key), time.monotonic() - start))

        looked = bundled = start
        for groups in self.worker.generate_groups(prompts, sampling, seeds):
            finished.extend(groups)
            if asked and time.monotonic() - looked < LOOK_SECONDS:
                continue
            yield from _scored(asked, 0.0)
            looked = time.monotonic()
            if not asked or looked - bundled > BUNDLE_SECONDS:
                ask()
                bundled = looked
        if finished:
            ask()
        yield from _scored(asked, seconds)


def _scored(asked: deque[_Bundle], seconds: float) -> Iterator[Any]:
    """Take out the bundles, in their order, that the scorer answers within `seconds` each.

    Groups cross to the driver's side of Ray while they are scored: what it waits for in the end is a short note.
    """
    while asked:
        first = asked[0]
        if not first.told:
            yield first.groups
            first.told = True
        if not ray.wait([first.scores], timeout=seconds, fetch_local=True)[0]:
            if seconds:
                raise InfrastructureError(f"waited {seconds:.0f} s for the scores of {len(asked)} bundles of groups")
            return
        asked.popleft()
        yield first.note()


def _summaries(reference: Any) -> list[GroupSummary] | None:
    try:
        return ray.get(reference)
    except RayTaskError as error:
        raise cause_of(error) from None
    except RayError:  # the scorer died; the driver, if there is one, has it scored again
        return None
