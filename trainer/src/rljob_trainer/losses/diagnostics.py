"""How far the policy that is trained is from the engine's that sampled: the same weights, other kernels.

Each rank makes its `ImportanceSums` of numpy arrays, a few numbers that travel as metadata; whoever has them all adds
them and calls `finish`.

    importance_sums(trainer, engine, lengths)  ->  sum(parts, start=ImportanceSums())  ->  .finish()
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_trainer.types import Floats

MAX_LOG_WEIGHT = 20.0
"""Bound of a log importance weight before exp, so that one broken response cannot make the sums infinite. At 5e8 it has
already driven the effective sample size to that of one sample."""


@dataclass(frozen=True, slots=True)
class ImportanceDiagnostics:
    """Engine against trainer over a batch of responses.

    mean_difference, max_difference: of |log p_trainer - log p_engine| of the sampled tokens, in nats.
    kl: KL(engine || trainer) per token, in nats, by Schulman's k3: mean of w - 1 - log w, w = p_trainer / p_engine;
        http://joschu.net/blog/kl-approx.html
    token_sample_size, response_sample_size: effective sample size of the weights w, as a share in (0, 1]:
        (sum w)^2 / (n sum w^2), over tokens, and over responses with the product of their tokens' weights. 1 where
        engine and trainer agree. Owen, Monte Carlo theory, methods and examples, section 9.3: https://artowen.su.domains/mc/
    """

    mean_difference: float
    max_difference: float
    kl: float
    token_sample_size: float
    response_sample_size: float


@dataclass(frozen=True, slots=True)
class WeightSums:
    """Of n importance weights w: n, sum w, sum w^2."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, log_weights: NDArray[np.float64]) -> "WeightSums":
        weights = np.exp(np.minimum(log_weights, MAX_LOG_WEIGHT))
        return cls(log_weights.size, float(weights.sum()), float((weights**2).sum()))

    def __add__(self, other: "WeightSums") -> "WeightSums":
        return WeightSums(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def effective_share(self) -> float:
        return self.total**2 / (self.count * self.squares)


@dataclass(frozen=True, slots=True)
class ImportanceSums:
    """Sums over the tokens and responses of a part, and their one maximum; parts add."""

    tokens: WeightSums = WeightSums()
    responses: WeightSums = WeightSums()
    absolute: float = 0.0
    maximum: float = 0.0
    kl: float = 0.0

    def __add__(self, other: "ImportanceSums") -> "ImportanceSums":
        return ImportanceSums(
            self.tokens + other.tokens,
            self.responses + other.responses,
            self.absolute + other.absolute,
            max(self.maximum, other.maximum),
            self.kl + other.kl,
        )

    def finish(self) -> ImportanceDiagnostics:
        """Raises ZeroDivisionError if no part had a token."""
        return ImportanceDiagnostics(
            mean_difference=self.absolute / self.tokens.count,
            max_difference=self.maximum,
            kl=self.kl / self.tokens.count,
            token_sample_size=self.tokens.effective_share(),
            response_sample_size=self.responses.effective_share(),
        )


def importance_sums(trainer_log_probs: Floats, engine_log_probs: Floats, lengths: NDArray[np.int64]) -> ImportanceSums:
    """One part's contribution; zeros for an empty part.

    trainer_log_probs, engine_log_probs: [sum(lengths)], of the sampled tokens at the same temperature and weights.
    lengths: [n], tokens of each response.
    """
    log_weights = trainer_log_probs.astype(np.float64) - engine_log_probs
    bounded = np.minimum(log_weights, MAX_LOG_WEIGHT)
    owners = np.repeat(np.arange(lengths.size), lengths)
    per_response = np.bincount(owners, weights=log_weights, minlength=lengths.size).astype(np.float64)
    return ImportanceSums(
        tokens=WeightSums.of(log_weights),
        responses=WeightSums.of(per_response),
        absolute=float(np.abs(log_weights).sum()),
        maximum=float(np.abs(log_weights).max(initial=0.0)),
        kl=float((np.expm1(bounded) - bounded).sum()),
    )
