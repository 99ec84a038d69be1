"""Estimates of the divergence KL(policy || reference) from the sampled tokens."""

import torch
from torch import Tensor

from rljob_api.v1alpha1.algorithm import KlEstimator
from rljob_trainer.losses.policy.terms import MAX_LOG_RATIO


def kl_estimate(
    estimator: KlEstimator, log_probs: Tensor, reference_log_probs: Tensor, clip: float | None = None
) -> Tensor:
    """Estimate of the divergence for each token, [T], in nats, from tokens that the policy sampled.

    With d = log pi - log pi_ref of the sampled token:
      k1   d               unbiased, of either sign
      k2   d^2 / 2         biased, never negative
      k3   exp(-d) - 1 + d unbiased, never negative; exp is bounded as in the losses
    clip: bound of an estimate's size; beyond it a token has no gradient. None: no bound.
    Schulman 2020, Approximating KL Divergence: http://joschu.net/blog/kl-approx.html

    A loss acts only through its gradient. In expectation over the policy's own tokens
      k1   grad = grad log pi             is 0: in the loss it only adds noise
      k2   grad = d grad log pi           is the gradient of KL(policy || reference), as for k1 in the reward
      k3   grad = (1 - exp(-d)) grad log pi   is the gradient of KL(reference || policy): GRPO's choice, equal to k2 to
           first order in d, weak if the policy's probability far exceeds the reference's
    None of them includes a token's effect on the divergence of later tokens; KL in the reward does.
    Tang and Munos 2025: https://arxiv.org/abs/2506.09477; Liu et al. 2025: https://arxiv.org/abs/2510.01555
    """
    estimates = _estimates(estimator, log_probs - reference_log_probs)
    return estimates if clip is None else estimates.clamp(-clip, clip)


def _estimates(estimator: KlEstimator, difference: Tensor) -> Tensor:
    match estimator:
        case "k1":
            return difference
        case "k2":
            return difference.square() / 2
        case "k3":
            bounded = difference.clamp(min=-MAX_LOG_RATIO)
            return torch.expm1(-bounded) + bounded
