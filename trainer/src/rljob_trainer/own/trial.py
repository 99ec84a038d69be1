"""Calls the user's functions once on small arrays: `python -m rljob_trainer.own.trial` reads the algorithm as JSON.

It writes the errors as a line of its output: RESULT, then a JSON list of [field, message].
"""

import json
import sys
from collections.abc import Callable, Iterator

import numpy as np

from rljob_api.resolve import ResolvedAlgorithm
from rljob_trainer.advantage import AdvantageBatch
from rljob_trainer.errors import JobError
from rljob_trainer.own.advantage import advantage_of
from rljob_trainer.own.check import RESULT
from rljob_trainer.own.load import FIELDS

_LENGTHS = (3, 1, 2, 2)
_TOKENS = sum(_LENGTHS)


def try_advantage(algorithm: ResolvedAlgorithm, *, values: bool) -> None:
    """Two groups of two episodes, of which one group has equal rewards. values: whether the job has a critic.

    Raises JobError.
    """
    batch = AdvantageBatch(
        rewards=np.array([1, 0, 0.5, 0.5], np.float32),
        groups=np.array([0, 0, 1, 1]),
        lengths=np.array(_LENGTHS),
        token_penalties=np.zeros(_TOKENS, np.float32) if algorithm.kl.placement == "reward" else None,
        gamma=algorithm.gamma,
        values=np.linspace(0, 1, _TOKENS, dtype=np.float32) if values else None,
        lambda_=algorithm.lambda_,
    )
    advantage_of(algorithm)(batch)


def try_loss(algorithm: ResolvedAlgorithm) -> None:
    """Two policies: the one that sampled, and one that has moved. Raises JobError."""
    import torch

    from rljob_trainer.losses.policy import PolicyBatch
    from rljob_trainer.own.load import own_function
    from rljob_trainer.own.loss import loss_of

    loss, own = loss_of(algorithm), algorithm.loss_from
    assert own is not None
    sampled = -torch.linspace(0.1, 2, _TOKENS)
    for old in (None, sampled):
        log_probs = (sampled if old is None else sampled + 0.1).clone().requires_grad_()
        batch = PolicyBatch(
            log_probs,
            advantages=torch.linspace(-1, 1, _TOKENS),
            old_log_probs=old,
            engine_log_probs=sampled,
            reference_log_probs=sampled if algorithm.kl.placement == "loss" else None,
            lengths=torch.tensor(_LENGTHS),
        )
        per_token = loss(batch, algorithm).per_token
        if per_token.requires_grad:
            per_token.sum().backward()
        function = own_function(own, "loss_from")
        if log_probs.grad is None:
            raise function.wrong("has no gradient: compute the loss from batch.log_probs or batch.ratio()")
        if not (per_token.isfinite().all() and log_probs.grad.isfinite().all()):
            raise function.wrong("returned a loss or gradient that is not finite, for probabilities from 0.15 to 1")


def errors(algorithm: ResolvedAlgorithm, *, values: bool) -> Iterator[JobError]:
    """What is wrong with each of them."""
    tries: dict[str, Callable[[], None]] = {
        "advantage_from": lambda: try_advantage(algorithm, values=values),
        "loss_from": lambda: try_loss(algorithm),
    }
    for name in FIELDS:
        if getattr(algorithm, name) is not None:
            try:
                tries[name]()
            except JobError as error:
                yield error


if __name__ == "__main__":
    given = json.load(sys.stdin)
    algorithm = ResolvedAlgorithm.model_validate(given["algorithm"])
    found = [[each.field, each.message] for each in errors(algorithm, values=given["values"])]
    sys.stdout.write(f"\n{RESULT}{json.dumps(found)}\n")
