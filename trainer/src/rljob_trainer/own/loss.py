"""The policy loss of a spec: a registered one, or the user's own."""

from typing import Any

import torch
from torch import Tensor

from rljob_api.resolve import ResolvedAlgorithm
from rljob_trainer.losses.policy import LOSSES, LossTerms, PolicyBatch, PolicyLoss
from rljob_trainer.own.load import Own, own_function


def loss_of(algorithm: ResolvedAlgorithm) -> PolicyLoss:
    """Raises JobError as own_function."""
    own = algorithm.loss_from
    if own is None:
        return LOSSES[algorithm.loss]
    function = own_function(own, "loss_from")
    return lambda batch, settings: _checked(function, batch, settings)


def _checked(function: Own, batch: PolicyBatch, settings: ResolvedAlgorithm) -> LossTerms:
    """Raises JobError for other shapes. Whether numbers are finite is not read: the host would wait for the device."""
    found = function(batch)
    per_token, clipped = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if clipped is None and settings.early_stop.clip_fraction is not None:
        raise function.wrong(
            "does not say what it clips, which algorithm.earlyStop.clipFraction reads: return (losses, clipped), with"
            " clipped a bool of each token, or remove that bound"
        )
    shape = batch.log_probs.shape
    for value in (per_token, clipped):
        if value is not None and not _is_of(value, shape):
            raise function.wrong(
                f"returned {_named(value)} for {shape.numel()} tokens: return a tensor with the loss of each token, or"
                " a pair of it and of a bool tensor of the same shape"
            )
    return LossTerms(
        per_token, clipped.bool() if clipped is not None else torch.zeros_like(per_token, dtype=torch.bool)
    )


def _is_of(value: Any, shape: torch.Size) -> bool:
    return isinstance(value, Tensor) and value.shape == shape


def _named(value: Any) -> str:
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
