"""SPPO: the log-probability ratio of a whole response regresses on how often it wins."""

import torch

from rljob_api.resolve import ResolvedAlgorithm
from rljob_trainer.losses.policy.terms import LossTerms, PolicyBatch


def sppo(batch: PolicyBatch, settings: ResolvedAlgorithm) -> LossTerms:
    """(log(pi(y) / pi_old(y)) - sppoEta A)^2 of sequence y.

    A is the mean over the sequence. Every token of the sequence has the same loss, so aggregation sequence_mean gives
    the mean over responses. Nothing is clipped: the square holds the policy near the old one.

    Use it with the advantage win_rate, and several updates a step, in which the policy approaches its target; with one,
    its gradient is that of a policy gradient, 2 sppoEta times as large.

    Wu et al. 2024, Self-Play Preference Optimization, equation 4.5: https://arxiv.org/abs/2405.00675
    """
    distances = batch.sequence_sums(batch.log_ratio()) - settings.sppo_eta * batch.sequence_means(batch.advantages)
    return LossTerms(distances.square(), torch.zeros_like(batch.advantages, dtype=torch.bool))
