"""Weights from the ranks into the engines, and the probe that proves them."""

from dataclasses import dataclass

import numpy as np

from rljob_api import ResolvedSpec
from rljob_trainer.actor.packing import TokenSequence
from rljob_trainer.actor.sharding import compute_dtype
from rljob_trainer.controller.workers import (
    START_SECONDS,
    SYNC_SECONDS,
    ActorGroup,
    EngineGroup,
    engines_of,
    sync_groups,
)
from rljob_trainer.types import Sample
from rljob_trainer.weight_sync.probe import DEFAULT_TOLERANCE, PROBE_TOKENS, ProbeResult, compare, probe_prompts
from rljob_trainer.weight_sync.sender import SyncReport


@dataclass(frozen=True, slots=True)
class Synced:
    """reports: of every rank. probes: of every engine."""

    reports: list[SyncReport]
    probes: list[ProbeResult]


class WeightSync:
    """Sends each version to all engines, then compares them with the trainer on fixed prompts."""

    def __init__(
        self, spec: ResolvedSpec, device_type: str, actors: ActorGroup, engines: EngineGroup, vocab_size: int
    ) -> None:
        self._actors, self._engines = actors, engines
        self._prompts = probe_prompts(vocab_size)
        dtype = compute_dtype(spec, device_type)
        self._tolerance = spec.rollout.weight_sync.probe_tolerance or DEFAULT_TOLERANCE[dtype]
        groups = sync_groups(spec, device_type)
        feeds = {group: engines_of(group, spec, engines.workers) for group in groups}
        self._targets = [feeds[group] if rank == group[0] else [] for group in groups for rank in group]

    def send(self, version: int) -> Synced:
        """Raises WeightSyncError where an engine does not compute what the trainer computes."""
        self._engines.call("begin_update", SYNC_SECONDS, version)
        each = [(targets,) for targets in self._targets]
        reports = self._actors.call("send_weights", SYNC_SECONDS, version, SYNC_SECONDS, each=each)
        self._engines.call("finish_update", START_SECONDS, version)
        self._engines.call("wake", SYNC_SECONDS)
        return Synced(reports, self._probe(version))

    def _probe(self, version: int) -> list[ProbeResult]:
        answers: list[list[Sample]] = self._engines.call("probe", SYNC_SECONDS, self._prompts, PROBE_TOKENS)
        samples = [sample for answer in answers for sample in answer]
        sequences = [
            TokenSequence(np.concatenate([self._prompts[sample.sample_index], sample.token_ids]), len(self._prompts[0]))
            for sample in samples
        ]
        ours = self._actors.call("log_probs", SYNC_SECONDS, sequences, 1.0)[0]
        size = len(self._prompts)
        return [
            compare(answer, ours[i * size : (i + 1) * size], version=version, tolerance=self._tolerance)
            for i, answer in enumerate(answers)
        ]
