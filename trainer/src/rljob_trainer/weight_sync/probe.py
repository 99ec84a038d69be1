"""The proof that an engine runs the weights it was sent.

A fixed prompt is sampled along the engine's normal path after each update, and the log-probabilities of the sampled
tokens are compared with the trainer's. The prompts fill several KV blocks and repeat at every update, so a prefix
cache that outlived its weights is hit and shows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rljob_trainer.errors import InfrastructureError
from rljob_trainer.types import Floats, Ids, Sample

PROBE_TOKENS = 8
"""Tokens sampled after each probe prompt."""

PROBE_LENGTH = 96
"""Tokens of each probe prompt: 3 KV blocks of 32 tokens (vLLM on a CPU), 6 of 16 (CUDA).

max_model_len must leave room for them."""

DEFAULT_TOLERANCE = {"float32": 0.001, "bfloat16": 0.15}
"""Nats, mean over the probe's tokens."""


class WeightSyncError(InfrastructureError):
    """The engine does not compute what the trainer computes: destroy the engine, never sync it again."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Absolute differences of log-probability over all probe tokens, in nats."""

    mean: float
    max: float


def probe_prompts(vocab_size: int, count: int = 4, length: int = PROBE_LENGTH) -> list[Ids]:
    """`count` prompts of `length` token ids below `vocab_size`: the same on every call and machine."""
    ids = np.random.Generator(np.random.PCG64(20_26)).integers(0, vocab_size, size=(count, length))
    return list(ids.astype(np.int32))


def compare(
    samples: Sequence[Sample], trainer_log_probs: Sequence[Floats], *, version: int, tolerance: float
) -> ProbeResult:
    """Compare the engine's log-probabilities of its samples with the trainer's of the same tokens.

    trainer_log_probs: one array [R] for each sample.
    Raises WeightSyncError where the mean difference exceeds `tolerance` nats or is not a number,
    or where there is nothing to compare.
    """
    pairs = zip(samples, trainer_log_probs, strict=True)
    gaps = np.concatenate([np.abs(sample.log_probs - np.asarray(ours)) for sample, ours in pairs])
    if not gaps.size:
        raise WeightSyncError(f"the probe of version {version} came back with no tokens to compare")
    result = ProbeResult(float(gaps.mean()), float(gaps.max()))
    if not result.mean <= tolerance:
        raise WeightSyncError(
            f"weights of version {version} did not arrive intact: log-probabilities of engine and trainer differ by "
            f"{result.mean:.4g} nats on average (largest {result.max:.4g}, tolerance {tolerance:g})"
        )
    return result
