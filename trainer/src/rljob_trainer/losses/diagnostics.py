"""The difference between the trainer's and the engine's log-probabilities: equal weights, different kernels.

Each rank returns `ImportanceSums` of its tokens; the driver adds them and calls `finish`.

    importance_sums(trainer, engine)  ->  sum(parts, start=ImportanceSums())  ->  .finish()
"""

from dataclasses import dataclass

import numpy as np

from rljob_trainer.types import Bools, Floats

MAX_LOG_WEIGHT = 20.0
"""Bound of a log importance weight before exp, so that one token cannot make the sums infinite. A weight of 5e8 already
reduces the effective sample size to one sample."""


@dataclass(frozen=True, slots=True)
class ImportanceDiagnostics:
    """Engine against trainer over a batch of tokens.

    mean_difference, max_difference: of |log p_trainer - log p_engine| of the tokens that the trainer's present version
        sampled, in nats; None if there are none.
    effective_sample_size: of the weights w = p_trainer / p_engine, as a share in (0, 1]: (sum w)^2 / (n sum w^2).
        1 if engine and trainer agree. Owen, Monte Carlo theory, methods and examples, section 9.3:
        https://artowen.su.domains/mc/
    """

    mean_difference: float | None
    max_difference: float | None
    effective_sample_size: float


@dataclass(frozen=True, slots=True)
class ImportanceSums:
    """Sums over a part's tokens, with w = p_trainer / p_engine.

    count: n. weights, squares: sum of w and of w^2.
    present: tokens that the trainer's present version sampled. absolute, maximum: sum and maximum of their |log w|.
    """

    count: int = 0
    present: int = 0
    weights: float = 0.0
    squares: float = 0.0
    absolute: float = 0.0
    maximum: float = 0.0

    def __add__(self, other: "ImportanceSums") -> "ImportanceSums":
        weights, squares = self.weights + other.weights, self.squares + other.squares
        absolute, maximum = self.absolute + other.absolute, max(self.maximum, other.maximum)
        count, present = self.count + other.count, self.present + other.present
        return ImportanceSums(count, present, weights, squares, absolute, maximum)

    def finish(self) -> ImportanceDiagnostics:
        """Raises ZeroDivisionError if no part had a token."""
        share = self.weights**2 / (self.count * self.squares)
        if not self.present:
            return ImportanceDiagnostics(None, None, effective_sample_size=share)
        return ImportanceDiagnostics(self.absolute / self.present, self.maximum, effective_sample_size=share)


def importance_sums(trainer_log_probs: Floats, engine_log_probs: Floats, present: Bools) -> ImportanceSums:
    """The sums of one part. All arrays: [T], of the sampled tokens at the same temperature.

    present: those that the trainer's present version sampled.
    """
    log_weights = trainer_log_probs.astype(np.float64) - engine_log_probs
    weights = np.exp(np.minimum(log_weights, MAX_LOG_WEIGHT))
    differences = np.abs(log_weights[present])
    return ImportanceSums(
        count=log_weights.size,
        present=differences.size,
        weights=float(weights.sum()),
        squares=float((weights**2).sum()),
        absolute=float(differences.sum()),
        maximum=float(differences.max(initial=0.0)),
    )
