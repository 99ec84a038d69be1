"""GPG: the plain policy gradient."""

import torch

from rljob_api.resolve import ResolvedAlgorithm
from rljob_trainer.losses.policy.terms import LossTerms, PolicyBatch


def gpg(batch: PolicyBatch, _settings: ResolvedAlgorithm) -> LossTerms:
    """-A log pi: no ratio, no clipping, no reference.

    Use it with one update a step. With several, nothing corrects for the policy that sampled the tokens.

    Chu et al. 2025, Group Policy Gradient: https://arxiv.org/abs/2504.02546
    """
    return LossTerms(-batch.advantages * batch.log_probs, torch.zeros_like(batch.log_probs, dtype=torch.bool))
