"""VAPO's addition to any policy loss: imitate the responses that are right."""

from torch import Tensor

from rljob_trainer.losses.totals import BatchTotals


def positive_nll(log_probs: Tensor, positive: Tensor, totals: BatchTotals) -> Tensor:
    """-log pi of positive tokens, summed and divided by their number in the whole minibatch: a scalar.

    log_probs: [T], with gradient. positive: [T], bool, tokens that count, of episodes with a reward above 0.
    The sum over all ranks and micro-batches is the mean over the minibatch's positive tokens.

    Yue et al. 2025, VAPO, section 4.3: https://arxiv.org/abs/2504.05118
    """
    return -(log_probs * positive).sum() / max(1, totals.positive_tokens)
