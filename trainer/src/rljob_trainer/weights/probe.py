"""The probe: verifies that an engine runs the weights that the ranks sent.

After each update the engine samples fixed prompts on its normal path, and the log-probabilities of the sampled tokens
are compared with the trainer's. The prompts fill several KV blocks and repeat at every update, so that a prefix cache
that was not reset is hit and detected.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rljob_trainer.engines.engine import Completion
from rljob_trainer.errors import InfrastructureError
from rljob_trainer.types import Floats, Ids


@dataclass(frozen=True, slots=True)
class ProbeSize:
    """length: tokens per prompt. tokens: sampled per prompt. max_model_len must be at least their sum."""

    length: int
    tokens: int


DEFAULT_TOLERANCE: Mapping[tuple[str, str], float] = {
    ("float32", "cpu"): 0.001,
    ("float32", "cuda"): 0.02,  # vLLM's attention multiplies with TF32: 0.001 was seen after 100 steps of training
    ("bfloat16", "cpu"): 0.15,
    ("bfloat16", "cuda"): 0.15,
}
"""Largest mean difference over the probe's tokens in nats, by the engine's dtype and device."""


REMEDY = (
    "docs/models.md says which models agree in which engine: set the other engine, or model.dtype to float32; if the"
    " difference is meant, raise rollout.weightSync.probeTolerance"
)
"""What to do about engine and trainer that do not compute the same."""


class WeightSyncError(InfrastructureError):
    """Engine and trainer compute different log-probabilities; the engine must be replaced."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Absolute differences of log-probability over all probe tokens, in nats."""

    mean: float
    max: float


def probe_prompts(vocab_size: int, length: int, count: int = 4) -> list[Ids]:
    """`count` prompts of `length` token ids below `vocab_size`: the same on every call and machine."""
    ids = np.random.Generator(np.random.PCG64(20_26)).integers(0, vocab_size, size=(count, length))
    return list(ids.astype(np.int32))


def compare(
    answers: Sequence[Completion], trainer_log_probs: Sequence[Floats], *, version: int, tolerance: float
) -> ProbeResult:
    """Compare the engine's log-probabilities with the trainer's for the same tokens.

    trainer_log_probs: one array [R] per answer.
    Raises WeightSyncError if the mean difference exceeds `tolerance` nats or is NaN, or if there are no tokens.
    """
    pairs = zip(answers, trainer_log_probs, strict=True)
    gaps = np.concatenate([np.abs(answer.log_probs - np.asarray(ours)) for answer, ours in pairs])
    if not gaps.size:
        raise WeightSyncError(f"the engine returned no tokens for the probe of version {version}")
    result = ProbeResult(float(gaps.mean()), float(gaps.max()))
    if not result.mean <= tolerance:
        raise WeightSyncError(
            f"the engine's weights of version {version} are wrong: log-probabilities of engine and trainer differ by "
            f"{result.mean:.4g} nats on average (largest {result.max:.4g}, tolerance {tolerance:g})"
        )
    return result
