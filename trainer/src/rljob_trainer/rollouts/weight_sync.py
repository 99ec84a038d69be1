"""Weights from the ranks into the engines, and the probe that proves them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_api import ResolvedSpec
from rljob_trainer.compute.dtypes import compute_dtype
from rljob_trainer.errors import EngineLost
from rljob_trainer.old_types import Floats, Sample
from rljob_trainer.rank.client import Pending, RankClient, sync_groups
from rljob_trainer.rank.results import Updated
from rljob_trainer.rollouts.engine_group import EngineGroup, engines_of
from rljob_trainer.weights.probe import (
    DEFAULT_TOLERANCE,
    PROBE_SIZES,
    ProbeResult,
    WeightSyncError,
    compare,
    probe_prompts,
)
from rljob_trainer.workers.worker import Worker


@dataclass(frozen=True, slots=True)
class Synced:
    """sent: bytes that each rank wrote. probes: of every engine."""

    sent: list[int]
    probes: list[ProbeResult]


class WeightSync:
    """Sends each version to all engines, then compares them with the trainer on fixed prompts."""

    def __init__(
        self, spec: ResolvedSpec, device_type: str, actors: RankClient, engines: EngineGroup, vocab_size: int
    ) -> None:
        self._spec, self._actors, self._engines = spec, actors, engines
        self._size = PROBE_SIZES[spec.rollout.engine]
        self._prompts = probe_prompts(vocab_size, self._size.length)
        dtype = compute_dtype(spec, device_type)
        self._tolerance = spec.rollout.weight_sync.probe_tolerance or DEFAULT_TOLERANCE[dtype, device_type]
        self._groups = sync_groups(spec, device_type)

    def begin(self, version: int, update: Pending[Updated] | None = None) -> Callable[[], Synced]:
        """Ask the ranks to send what they hold, after `update` if it is under way. What it returns waits for that.

        That raises EngineLost for an engine that does not compute what the trainer computes: it cannot be mended.
        """
        engines = list(self._engines.workers)
        feeds = {group: engines_of(group, self._spec, engines) for group in self._groups}
        each = [feeds[group] if rank == group[0] else [] for group in self._groups for rank in group]
        sending = self._actors.send_weights(each, version, self._prompts, self._size.tokens, update)
        scoring = self._actors.score_probes(self._prompts, sending)

        def synced() -> Synced:
            sent = sending.result()
            answers = [answer for each in sent for answer in each.answers]
            return Synced([each.nbytes for each in sent], self._compare(engines, answers, scoring.result()[0], version))

        return synced

    def _compare(
        self, engines: Sequence[Worker[Any]], answers: list[list[Sample]], ours: list[list[Floats]], version: int
    ) -> list[ProbeResult]:
        """answers: of each engine to the probe. ours: the trainer's log-probabilities of them."""
        results = []
        for engine, answer, expected in zip(engines, answers, ours, strict=True):
            try:
                results.append(compare(answer, expected, version=version, tolerance=self._tolerance))
            except WeightSyncError as error:
                raise EngineLost(f"{engine.name}: {error}", worker=engine.name) from error
        return results
