"""SAPO: a soft gate in place of clipping."""

import torch

from rljob_api.resolve import ResolvedAlgorithm
from rljob_trainer.losses.policy.terms import LossTerms, PolicyBatch


def sapo(batch: PolicyBatch, settings: ResolvedAlgorithm) -> LossTerms:
    """-A (4 / tau) sigmoid(tau (r - 1)), with tau = tauPos if A > 0, else tauNeg, and r = pi / pi_old of the token.

    At r = 1 the gradient is that of r A; it falls to 0 on both sides of 1, the faster the larger tau is.

    Use it if hard clipping loses too many tokens; tauNeg above tauPos damps bad tokens more, which is more stable.

    Gao et al. 2025, Soft Adaptive Policy Optimization: https://arxiv.org/abs/2511.20347
    """
    ratio, advantages = batch.ratio(), batch.advantages
    tau = torch.where(advantages > 0, settings.tau_pos, settings.tau_neg).to(ratio.dtype)
    gate = torch.sigmoid(tau * (ratio - 1)) * (4 / tau)
    return LossTerms(-advantages * gate, torch.zeros_like(ratio, dtype=torch.bool))
