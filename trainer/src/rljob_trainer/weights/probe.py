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
    # Of SmolLM2 135M, a pretrained model: 0.16 over its own responses, 0.33 after random tokens, as the probe's are.
    ("fp8", "cuda"): 1.0,
}
"""Largest mean difference over the probe's tokens in nats, by what the engine multiplies, and where."""


FEW_PROMPTS, MANY_PROMPTS = 4, 16
"""With products in float32, and in less: there rounding differs much from prompt to prompt. In bfloat16 the mean
difference of 4 prompts of SmolLM2 was 0.03 to 0.10 nats, from sync to sync, with nearly the same weights."""

_CLEARLY = 3
"""How many times as far as the model without an adapter the policy must be. Rounding moves both distances alike."""

REMEDY = (
    "docs/models.md says which models agree in which engine: set the other engine, or model.dtype to float32; if the"
    " difference is meant, raise rollout.weightSync.probeTolerance"
)
"""What to do about engine and trainer that do not compute the same."""


class WeightSyncError(InfrastructureError):
    """Engine and trainer compute different log-probabilities; the engine must be replaced."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Absolute differences of log-probability over all probe tokens, in nats.

    moved: mean difference of the trainer's policy from the model without its adapter; None if it has none.
    """

    mean: float
    max: float
    moved: float | None = None


def probe_prompts(vocab_size: int, length: int, count: int = FEW_PROMPTS) -> list[Ids]:
    """`count` prompts of `length` token ids below `vocab_size`: the same on every call and machine."""
    ids = np.random.Generator(np.random.PCG64(20_26)).integers(0, vocab_size, size=(count, length))
    return list(ids.astype(np.int32))


def compare(
    answers: Sequence[Completion], trainer_log_probs: Sequence[Floats], *, version: int, tolerance: float,
    base_log_probs: Sequence[Floats] | None = None,
) -> ProbeResult:  # fmt: skip
    """Compare the engine's log-probabilities with the trainer's for the same tokens.

    trainer_log_probs: one array [R] per answer. base_log_probs: the same without the adapter, if there is one.
    Raises WeightSyncError if the mean difference exceeds `tolerance` nats or is NaN, or if there are no tokens; and if
    the engine is less than a third as far from the model without its adapter as from the policy: a young adapter moves
    the policy by less than the tolerance.
    """
    theirs = [answer.log_probs for answer in answers]
    gaps = _gaps(theirs, trainer_log_probs)
    if not gaps.size:
        raise WeightSyncError(f"the engine returned no tokens for the probe of version {version}")
    moved = None if base_log_probs is None else float(_gaps(trainer_log_probs, base_log_probs).mean())
    result = ProbeResult(float(gaps.mean()), float(gaps.max()), moved)
    if not result.mean <= tolerance:
        raise WeightSyncError(
            f"the engine's weights of version {version} are wrong: log-probabilities of engine and trainer differ by "
            f"{result.mean:.4g} nats on average (largest {result.max:.4g}, tolerance {tolerance:g})"
        )
    if base_log_probs is not None and (to_base := float(_gaps(theirs, base_log_probs).mean())) < result.mean / _CLEARLY:
        raise WeightSyncError(
            f"the engine runs version {version} without its adapter: its log-probabilities differ by {to_base:.4g} nats"
            f" on average from the model without the adapter, and by {result.mean:.4g} from the policy"
        )
    return result


def _gaps(one: Sequence[Floats], other: Sequence[Floats]) -> Floats:
    """[tokens], absolute."""
    pairs = zip(one, other, strict=True)
    return np.concatenate([np.abs(np.asarray(left) - np.asarray(right)) for left, right in pairs])
