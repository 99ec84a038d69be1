"""The loss of the critic."""

import torch
from torch import Tensor

from rljob_trainer.losses.policy.terms import LossTerms


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip_range: float) -> LossTerms:
    """max((v - R)^2, (clip(v, v_old - clip_range, v_old + clip_range) - R)^2) / 2 of each token.

    values: [T], with gradient. old_values: [T], of the critic at the start of the step. returns: [T], what it learns.
    Clipped are the tokens whose second error is the larger one: they have no gradient.

    As verl's compute_value_loss; Schulman et al.'s code of PPO has it: https://github.com/openai/baselines (ppo2)
    """
    bounded = values.clamp(old_values - clip_range, old_values + clip_range)
    own, other = (values - returns).square(), (bounded - returns).square()
    return LossTerms(torch.maximum(own, other) / 2, other > own)
