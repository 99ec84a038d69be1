"""Whether a step makes no more updates of its samples, because the policy has moved too far from where it began.

minibatch: passes ──> drift and clipped tokens, summed over all ranks ──> above a bound: no update, and no further ones

Spinning Up bounds PPO's drift so: https://spinningup.openai.com/en/latest/algorithms/ppo.html
"""

import math

import torch.distributed as dist
from torch import Tensor

from rljob_api.v1alpha1.algorithm import EarlyStop


def exceeded(bounds: EarlyStop, counted: Tensor) -> bool:
    """Whether the minibatch whose gradient is ready exceeds a bound; collective over all ranks if there are bounds.

    counted: [3], this rank's tokens, clipped tokens and drift in the minibatch. Every rank gets the same answer. It
    reads numbers back from the device, so a job without bounds does not pay for it.
    """
    if bounds.kl is None and bounds.clip_fraction is None:
        return False
    dist.all_reduce(counted)
    tokens, clipped, drift = counted.tolist()
    if not math.isfinite(drift):
        return False  # nor is the gradient finite, and training.onBadGradient counts that
    too_far = bounds.kl is not None and drift > bounds.kl * tokens
    return too_far or (bounds.clip_fraction is not None and clipped > bounds.clip_fraction * tokens)
