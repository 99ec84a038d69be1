"""The proof that an engine runs the weights it was sent.

A fixed prompt is sampled along the engine's normal path after each update, and the log-probabilities of the sampled
tokens are compared with the trainer's. The prompts fill several KV blocks and repeat at every update, so a prefix
cache that outlived its weights is hit and shows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rljob_trainer.engines.engine import Completion
from rljob_trainer.errors import InfrastructureError
from rljob_trainer.types import Floats, Ids


@dataclass(frozen=True, slots=True)
class ProbeSize:
    """length: tokens of each prompt. tokens: sampled after each. max_model_len must leave room for both."""

    length: int
    tokens: int


DEFAULT_TOLERANCE: Mapping[tuple[str, str], float] = {
    ("float32", "cpu"): 0.001,
    ("float32", "cuda"): 0.02,  # vLLM's attention multiplies with TF32: 0.001 was seen after 100 steps of training
    ("bfloat16", "cpu"): 0.15,
    ("bfloat16", "cuda"): 0.15,
}
"""Nats, mean over the probe's tokens, by what the engine computes in and on."""


class WeightSyncError(InfrastructureError):
    """The engine does not compute what the trainer computes: destroy the engine, never sync it again."""


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
    """Compare the engine's log-probabilities of its answers with the trainer's of the same tokens.

    trainer_log_probs: one array [R] for each answer.
    Raises WeightSyncError where the mean difference exceeds `tolerance` nats or is not a number,
    or where there is nothing to compare.
    """
    pairs = zip(answers, trainer_log_probs, strict=True)
    gaps = np.concatenate([np.abs(answer.log_probs - np.asarray(ours)) for answer, ours in pairs])
    if not gaps.size:
        raise WeightSyncError(f"the probe of version {version} came back with no tokens to compare")
    result = ProbeResult(float(gaps.mean()), float(gaps.max()))
    if not result.mean <= tolerance:
        raise WeightSyncError(
            f"weights of version {version} did not arrive intact: log-probabilities of engine and trainer differ by "
            f"{result.mean:.4g} nats on average (largest {result.max:.4g}, tolerance {tolerance:g})"
        )
    return result
