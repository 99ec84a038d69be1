"""Weights from the ranks into the engines, and the probe that proves them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rljob_api import ResolvedSpec
from rljob_trainer.compute.dtypes import compute_dtype
from rljob_trainer.engines.engine import Completion
from rljob_trainer.engines.engine_host import EngineProcess
from rljob_trainer.engines.registry import ENGINES
from rljob_trainer.errors import EngineLost, EngineMismatch
from rljob_trainer.rank.client import RankClient
from rljob_trainer.rank.parallel import ranks_of_engine, sync_groups
from rljob_trainer.rank.results import ProbeScores, Updated
from rljob_trainer.rollouts.engine_client import EngineClient
from rljob_trainer.types import Floats
from rljob_trainer.weights.probe import (
    DEFAULT_TOLERANCE,
    FEW_PROMPTS,
    MANY_PROMPTS,
    REMEDY,
    ProbeResult,
    WeightSyncError,
    compare,
    probe_prompts,
)
from rljob_trainer.workers.worker import Pending, Worker


@dataclass(frozen=True, slots=True)
class Synced:
    """sent: bytes that each rank wrote. probes: of every engine."""

    sent: list[int]
    probes: list[ProbeResult]


AGAIN = 3
"""Syncs in a row whose probe may fail: a new engine follows each, and the same fault in all of them is no accident."""


def tolerance_of(spec: ResolvedSpec, device_type: str) -> float:
    """Nats by which engine and trainer may differ on average."""
    return spec.rollout.weight_sync.probe_tolerance or DEFAULT_TOLERANCE[_multiplied(spec, device_type), device_type]


def _multiplied(spec: ResolvedSpec, device_type: str) -> str:
    """The type of the engine's matrix products."""
    quantization = spec.rollout.quantization
    return compute_dtype(spec, device_type) if quantization == "none" else quantization


class WeightSync:
    """Sends each version to all engines, then compares them with the trainer on fixed prompts."""

    def __init__(
        self, spec: ResolvedSpec, device_type: str, ranks: RankClient, engines: EngineClient, vocab_size: int
    ) -> None:
        self._spec, self._ranks, self._engines = spec, ranks, engines
        self._size = ENGINES[spec.rollout.engine].probe
        count = FEW_PROMPTS if _multiplied(spec, device_type) == "float32" else MANY_PROMPTS
        self._prompts = probe_prompts(vocab_size, self._size.length, count)
        self._tolerance = tolerance_of(spec, device_type)
        self._groups = sync_groups(spec, device_type)
        self._by_adapter = spec.model.lora is not None and not spec.model.lora.merge
        self._differing = 0  # syncs in a row whose probe failed
        self._whole: set[str] = set()  # identities of engines that hold the model below the adapter

    def begin(
        self, version: int, engines: Sequence[Worker[EngineProcess]], update: Pending[Updated] | None = None
    ) -> Callable[[], Synced]:
        """Ask the ranks to send what they hold to `engines`, after `update` if it is under way.

        What it returns waits for that. It raises EngineLost for an engine that does not compute what the trainer
        computes: it is replaced; and EngineMismatch if new engines do not either.
        """
        first = [ranks_of_engine(self._spec, place)[0] for place in range(len(self._engines.workers))]
        feeds = {
            group: [each for rank, each in zip(first, self._engines.workers, strict=True) if rank in group]
            for group in self._groups
        }
        by_rank = [
            [engine for engine in feeds[group] if engine in engines] if rank == group[0] else []
            for group in self._groups
            for rank in group
        ]
        in_order = [engine for fed in by_rank for engine in fed]
        whole = not self._by_adapter or any(engine.identity not in self._whole for engine in in_order)
        if whole:
            self._whole.difference_update(engine.identity for engine in in_order)
        sending = self._ranks.send_weights(
            by_rank, version, self._prompts, self._size.tokens, whole=whole, after=update
        )
        scoring = self._ranks.score_probes(self._prompts, sending)

        def synced() -> Synced:
            sent = sending.result()
            answers = [answer for each in sent for answer in each.answers]
            probes = self._compare(in_order, answers, scoring.result()[0], version)
            self._whole |= {engine.identity for engine in in_order}
            return Synced([each.nbytes for each in sent], probes)

        return synced

    def _compare(
        self,
        engines: Sequence[Worker[EngineProcess]],
        answers: list[list[Completion]],
        ours: ProbeScores,
        version: int,
    ) -> list[ProbeResult]:
        """answers: of each engine to the probe. ours: the trainer's scores of them."""
        results = []
        bases: Sequence[list[Floats] | None] = ours.base or [None] * len(engines)
        for engine, answer, expected, base in zip(engines, answers, ours.policy, bases, strict=True):
            try:
                results.append(
                    compare(answer, expected, version=version, tolerance=self._tolerance, base_log_probs=base)
                )
            except WeightSyncError as error:
                self._differing += 1
                if self._differing >= AGAIN:
                    raise EngineMismatch(f"{error}; {REMEDY}", field="spec.rollout.engine") from error
                raise EngineLost(f"{engine.name}: {error}", worker=engine.name) from error
        self._differing = 0
        return results
