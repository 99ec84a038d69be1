"""Which tokens of a minibatch clip_cov and kl_cov treat apart, by the covariance of log-probability and advantage.

    C_t = (log pi_old(t) - mean(log pi_old)) (A_t - mean(A))      means over all tokens of the minibatch that count

kl_cov    takes the share klCovRatio of all tokens with the highest C
clip_cov  takes a random share clipCovRatio of all tokens, from those with clipCovLb < C < clipCovUb

A policy gradient lowers the entropy by about the learning rate x the mean of C: Cui et al. 2025, The Entropy Mechanism:
https://arxiv.org/abs/2505.22617

The policy at the start of the step takes the place of the trained one, which is the same at the first update. So the
choice is made once a step, over all ranks and micro-batches, before any pass.
"""

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_api.resolve import ResolvedAlgorithm
from rljob_api.v1alpha1.terms import Loss
from rljob_trainer.types import Floats, Ids

Doubles = NDArray[np.float64]

BY_COVARIANCE: frozenset[Loss] = frozenset({"clip_cov", "kl_cov"})
"""The losses that choose tokens here, and so need the log-probabilities from the start of the step."""


@dataclass(frozen=True, slots=True)
class CovarianceSums:
    """Sums over tokens that count: their number, and of A, log pi and A log pi. Those of parts add up."""

    count: float = 0.0
    advantages: float = 0.0
    log_probs: float = 0.0
    products: float = 0.0

    def __add__(self, other: "CovarianceSums") -> "CovarianceSums":
        return CovarianceSums(
            self.count + other.count,
            self.advantages + other.advantages,
            self.log_probs + other.log_probs,
            self.products + other.products,
        )

    @classmethod
    def of(cls, log_probs: Doubles, advantages: Doubles) -> "CovarianceSums":
        products = float(log_probs @ advantages)
        return cls(float(len(log_probs)), float(advantages.sum()), float(log_probs.sum()), products)

    def covariance(self) -> float:
        """The mean of C; 0 without tokens."""
        n = max(1.0, self.count)
        return self.products / n - self.advantages / n * self.log_probs / n

    def of_each(self, log_probs: Doubles, advantages: Doubles) -> Doubles:
        """C of each token, [T]."""
        n = max(1.0, self.count)
        return (log_probs - self.log_probs / n) * (advantages - self.advantages / n)


def scores(covariances: Doubles, key: int, settings: ResolvedAlgorithm) -> Doubles:
    """[T]: the tokens with the highest scores of the minibatch are chosen; -inf: never.

    key: of the sequence, so that its random numbers do not depend on who draws them.
    """
    if settings.loss == "kl_cov":
        return np.where(covariances > 0, covariances, -np.inf)  # all are 0 if no response is better than another
    eligible = (covariances > settings.clip_cov_lb) & (covariances < settings.clip_cov_ub)
    return np.where(eligible, np.random.default_rng(key).random(len(covariances)), -np.inf)


def key_of(token_ids: Ids, log_probs: Floats) -> int:
    """Names a sampled sequence by its content."""
    return zlib.crc32(log_probs.tobytes(), zlib.crc32(token_ids.tobytes()))


def chosen_tokens(tokens: int, settings: ResolvedAlgorithm) -> int:
    """How many of a minibatch's tokens are chosen, at most; one at least, as in verl."""
    share = settings.kl_cov_ratio if settings.loss == "kl_cov" else settings.clip_cov_ratio
    return max(1, int(share * tokens))
