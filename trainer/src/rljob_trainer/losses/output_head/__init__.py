"""Log-probability and entropy of given tokens from hidden states, without keeping the logits.

    hidden [T, H] ── chunk by chunk ──> logits [rows, V] ──> log-probability, entropy, log-sum-exp   of each row
    backward      ── chunk by chunk ──> logits again ──> their gradient in the same memory ──> of hidden, of weight

function.py   the autograd function and its chunks
rows.py       what one chunk of logits gives, in plain PyTorch
triton_rows.py  the same in one pass over the logits, on a GPU
transform.py  what an architecture does with its head's logits
"""

from rljob_trainer.losses.output_head.function import (
    likeliest_tokens,
    score_candidates,
    score_logits,
    score_tokens,
)
from rljob_trainer.losses.output_head.transform import LogitTransform

__all__ = ["LogitTransform", "likeliest_tokens", "score_candidates", "score_logits", "score_tokens"]
