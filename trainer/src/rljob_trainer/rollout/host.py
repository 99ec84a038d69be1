"""The Ray worker of a rollout engine. Light, because the driver imports it; its process does not import the trainer."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError, RayTaskError

from rljob_trainer.errors import InfrastructureError, JobError
from rljob_trainer.hosting.host import Host
from rljob_trainer.rollout.engine import EngineSettings, preload_engine
from rljob_trainer.rollout.worker import RolloutWorker
from rljob_trainer.types import Group, GroupSummary, Prompt, Sampling
from rljob_trainer.waiting import cause_of

if TYPE_CHECKING:
    from rljob_trainer.hosting.roster import Worker
    from rljob_trainer.journal import GroupKey


SCORE_SECONDS = 600.0
"""How long an engine waits for one more score when it has finished. A driver that takes over waits for that."""


@dataclass(frozen=True, slots=True)
class Note:
    """What the driver learns of a group. summary: None where the scorer was lost. generated: seconds since the call."""

    prompt_id: str
    summary: GroupSummary | None
    generated: float


class EngineHost(Host):
    """A rollout engine that hands finished groups to the scorer by itself: that goes on when the driver is gone."""

    worker: RolloutWorker

    def create(self, settings: EngineSettings, threads: int) -> RolloutWorker:
        """Imports what the engine needs, while others still read data and weights."""
        self._wanted = False
        with suppress(JobError):  # vLLM is missing: start says so
            preload_engine(settings)
        if settings.device == "cpu":
            import torch

            torch.set_num_threads(threads)
        return RolloutWorker(settings)

    def claimed(self) -> None:
        """What runs for the driver before goes on where its groups are journaled; nobody reads the others."""
        if not self._wanted:
            self.worker.abandon()

    def generate(
        self, scorer: "Worker", prompts: Sequence[Prompt], sampling: Sampling, seeds: Sequence[Sequence[int]],
        key: "GroupKey | None",
    ) -> Iterator[Any]:  # fmt: skip
        """Yield for each group, once it is scored, the group itself and then its note.

        key: under which the scorer journals the groups; None for a validation.
        """
        self._wanted = key is not None
        start = time.monotonic()
        unscored: dict[Any, tuple[Group, float]] = {}
        for group in self.worker.generate_groups(prompts, sampling, seeds):
            unscored[scorer.call("score", ray.put(group), key)] = group, time.monotonic() - start
            yield from _scored(unscored, 0.0)
        while unscored:
            yield from _scored(unscored, SCORE_SECONDS)


def _scored(unscored: dict[Any, tuple[Group, float]], seconds: float) -> Iterator[Any]:
    """Take out what the scorer has answered within `seconds`."""
    ready, _ = ray.wait(list(unscored), timeout=seconds, fetch_local=True)
    if not ready and seconds:
        raise InfrastructureError(f"waited {seconds:.0f} s for the scores of {len(unscored)} groups")
    for summary in ready:
        group, generated = unscored.pop(summary)
        yield group
        yield Note(group.prompt.id, _summary(summary), generated)


def _summary(reference: Any) -> GroupSummary | None:
    try:
        return ray.get(reference)
    except RayTaskError as error:
        raise cause_of(error) from None
    except RayError:  # the scorer died; the driver, if there is one, has it scored again
        return None
