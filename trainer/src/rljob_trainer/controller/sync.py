"""Weights from the ranks into the engines, and the probe that proves them."""

from dataclasses import dataclass

import numpy as np

from rljob_api import ResolvedSpec
from rljob_trainer.actor.dtypes import compute_dtype
from rljob_trainer.actor.sequence import TokenSequence
from rljob_trainer.controller.engine_group import EngineGroup, engines_of
from rljob_trainer.controller.workers import (
    START_SECONDS,
    SYNC_SECONDS,
    ActorGroup,
    sync_groups,
)
from rljob_trainer.errors import EngineLost
from rljob_trainer.types import Sample
from rljob_trainer.weight_sync.probe import (
    DEFAULT_TOLERANCE,
    PROBE_SIZES,
    ProbeResult,
    WeightSyncError,
    compare,
    probe_prompts,
)


@dataclass(frozen=True, slots=True)
class Synced:
    """sent: bytes that each rank wrote. probes: of every engine."""

    sent: list[int]
    probes: list[ProbeResult]


class WeightSync:
    """Sends each version to all engines, then compares them with the trainer on fixed prompts."""

    def __init__(
        self, spec: ResolvedSpec, device_type: str, actors: ActorGroup, engines: EngineGroup, vocab_size: int
    ) -> None:
        self._spec, self._actors, self._engines = spec, actors, engines
        self._size = PROBE_SIZES[spec.rollout.engine]
        self._prompts = probe_prompts(vocab_size, self._size.length)
        dtype = compute_dtype(spec, device_type)
        self._tolerance = spec.rollout.weight_sync.probe_tolerance or DEFAULT_TOLERANCE[dtype, device_type]
        self._groups = sync_groups(spec, device_type)

    def send(self, version: int) -> Synced:
        """Raises EngineLost for an engine that does not compute what the trainer computes: it cannot be mended."""
        feeds = {group: engines_of(group, self._spec, self._engines.workers) for group in self._groups}
        each = [(feeds[group] if rank == group[0] else [],) for group in self._groups for rank in group]
        sent = self._actors.call("send_weights", SYNC_SECONDS, version, SYNC_SECONDS, each=each)
        answers = self._engines.complete_update(START_SECONDS, version, self._prompts, self._size.tokens)
        return Synced(sent, self._compare(answers, version))

    def _compare(self, answers: list[list[Sample]], version: int) -> list[ProbeResult]:
        """answers: of each engine to the probe."""
        samples = [sample for answer in answers for sample in answer]
        sequences = [
            TokenSequence(np.concatenate([self._prompts[sample.sample_index], sample.token_ids]), len(self._prompts[0]))
            for sample in samples
        ]
        ours = self._actors.call("log_probs", SYNC_SECONDS, sequences, 1.0)[0]
        size, results = len(self._prompts), []
        for i, (engine, answer) in enumerate(zip(self._engines.workers, answers, strict=True)):
            try:
                part = ours[i * size : (i + 1) * size]
                results.append(compare(answer, part, version=version, tolerance=self._tolerance))
            except WeightSyncError as error:
                raise EngineLost(f"{engine.name}: {error}", worker=engine.name) from error
        return results
