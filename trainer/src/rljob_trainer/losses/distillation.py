"""The divergence from a teacher over its likeliest tokens, which is a term of the loss (algorithm.teacher.topK)."""

import torch
from torch import Tensor

_LEAST = torch.finfo(torch.float32).eps
"""Probability of the rest that float32 can still tell from 0 beside 1; a smaller one has no gradient."""

_LOWEST = -1e30
"""A finite log-probability of 0: its product with that is 0."""


def top_k_reverse_kl(log_probs: Tensor, teacher_log_probs: Tensor) -> Tensor:
    """D of each token in the loss, [T] in nats: the reverse KL over K tokens and the rest of the vocabulary.

      D = sum over v in S of p_v log(p_v / q_v)  +  p_rest log(p_rest / q_rest),    p_rest = 1 - sum over S of p_v

    p, q: probabilities of the next token by the policy and by the teacher. S: the K tokens that the teacher finds
    likeliest there. log_probs, teacher_log_probs: [T, K], log p and log q of S; a token of which log q is -inf belongs
    to the rest.

    D is KL(p || q) of distributions over K + 1 outcomes: never negative, 0 only where they agree, at most the KL over
    the vocabulary, and that KL if S is the vocabulary. Of the sum over S alone none of this holds: it is least at
    p_v = q_v / e, and the policy lowers it by leaving S. The gradient of a logit u is exact, without sampling noise:

      dD / dz_u = p_u (log(p_u / q_u) - D), outside of S with p_rest / q_rest for p_u / q_u

    Agarwal et al. 2023, GKD, on the student's own samples: https://arxiv.org/abs/2306.13649 (TRL's beta 1). S is the
    teacher's, as in verl (distillation_loss forward_kl_topk_tail, which has the rest too): servers answer these tokens
    and no others, and they are the same in all updates of a step. What the policy prefers outside of S counts in the
    rest. TRL's SDFT has the same sum over the student's S, for a teacher of which all logits are at hand.
    """
    known = teacher_log_probs > -torch.inf
    finite = log_probs.clamp(min=_LOWEST)
    p, q = (torch.where(known, each.exp(), 0) for each in (finite, teacher_log_probs))
    within = p * torch.where(known, finite - teacher_log_probs, 0)
    p_rest, q_rest = ((1 - each.sum(-1)).clamp(min=_LEAST) for each in (p, q))
    return within.sum(-1) + p_rest * (p_rest.log() - q_rest.log())
