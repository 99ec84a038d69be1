"""The difference between the trainer's and the engine's log-probabilities: equal weights, different kernels.

Each rank returns `ImportanceSums` of its tokens; the driver adds them and calls `finish`.

    importance_sums(trainer, engine)  ->  sum(parts, start=ImportanceSums())  ->  .finish()
"""

from dataclasses import dataclass

import numpy as np

from rljob_trainer.types import Floats

MAX_LOG_WEIGHT = 20.0
"""Bound of a log importance weight before exp, so that one token cannot make the sums infinite. A weight of 5e8 already
reduces the effective sample size to one sample."""


@dataclass(frozen=True, slots=True)
class ImportanceDiagnostics:
    """Engine against trainer over a batch of tokens.

    mean_difference, max_difference: of |log p_trainer - log p_engine| of the sampled tokens, in nats.
    effective_sample_size: of the weights w = p_trainer / p_engine, as a share in (0, 1]: (sum w)^2 / (n sum w^2).
        1 if engine and trainer agree. Owen, Monte Carlo theory, methods and examples, section 9.3:
        https://artowen.su.domains/mc/
    """

    mean_difference: float
    max_difference: float
    effective_sample_size: float


@dataclass(frozen=True, slots=True)
class ImportanceSums:
    """Sums over a part's tokens, with w = p_trainer / p_engine.

    count: n. weights, squares: sum of w and of w^2. absolute, maximum: sum and maximum of |log w|.
    """

    count: int = 0
    weights: float = 0.0
    squares: float = 0.0
    absolute: float = 0.0
    maximum: float = 0.0

    def __add__(self, other: "ImportanceSums") -> "ImportanceSums":
        weights, squares = self.weights + other.weights, self.squares + other.squares
        absolute, maximum = self.absolute + other.absolute, max(self.maximum, other.maximum)
        return ImportanceSums(self.count + other.count, weights, squares, absolute, maximum)

    def finish(self) -> ImportanceDiagnostics:
        """Raises ZeroDivisionError if no part had a token."""
        share = self.weights**2 / (self.count * self.squares)
        return ImportanceDiagnostics(self.absolute / self.count, self.maximum, effective_sample_size=share)


def importance_sums(trainer_log_probs: Floats, engine_log_probs: Floats) -> ImportanceSums:
    """The sums of one part. Both arrays: [T], of the sampled tokens at the same temperature and weights."""
    log_weights = trainer_log_probs.astype(np.float64) - engine_log_probs
    weights = np.exp(np.minimum(log_weights, MAX_LOG_WEIGHT))
    return ImportanceSums(
        count=log_weights.size,
        weights=float(weights.sum()),
        squares=float((weights**2).sum()),
        absolute=float(np.abs(log_weights).sum()),
        maximum=float(np.abs(log_weights).max(initial=0.0)),
    )
