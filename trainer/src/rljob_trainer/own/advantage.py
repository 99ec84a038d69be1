"""The advantage estimator of a spec: a registered one, or the user's own."""

import numpy as np

from rljob_api.resolve import ResolvedAlgorithm
from rljob_trainer.advantage import ADVANTAGES, AdvantageBatch, AdvantageEstimator
from rljob_trainer.own.load import Own, own_function
from rljob_trainer.types import Floats


def advantage_of(algorithm: ResolvedAlgorithm) -> AdvantageEstimator:
    """Raises JobError as own_function."""
    own = algorithm.advantage_from
    if own is None:
        return ADVANTAGES[algorithm.advantage]
    function = own_function(own, "advantage_from")
    return lambda batch: _checked(function, batch)


def _checked(function: Own, batch: AdvantageBatch) -> Floats:
    """[sum(lengths)]. Raises JobError for another shape, or a number that is not finite."""
    found = function(batch)
    try:
        advantages = np.asarray(found, np.float32)
    except (TypeError, ValueError) as error:
        raise function.wrong(f"returned {type(found).__name__}: return an array of numbers") from error
    if advantages.shape != (batch.tokens,):
        raise function.wrong(
            f"returned the shape {advantages.shape} for {batch.tokens} tokens in the loss: return one number for each,"
            " for example batch.spread(numbers) of [N] numbers of the episodes"
        )
    if not np.isfinite(advantages).all():
        raise function.wrong("returned numbers that are not finite: divide by a deviation only where it is above 0")
    return advantages
