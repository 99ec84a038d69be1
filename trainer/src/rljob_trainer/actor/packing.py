"""Several sequences in one row, one after another: no padding reaches the linear layers.

sequence A = prompt 5 6, response 7 8      sequence B = prompt 9, response 4
input_ids     5 6 7 8 9 4
position_ids  0 1 2 3 0 1
boundaries    0 4 6
predict_at    1 2 4        the rows whose logits predict a response token
targets       7 8 4
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rljob_trainer.actor.sequence import TokenSequence


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """One micro-batch.

    input_ids, position_ids: [1, T] int64. boundaries: [n + 1] int32, where each sequence starts, and T.
    max_length: of the longest sequence. predict_at, targets: [sum of R] int64. response_lengths: [n].
    """

    input_ids: Tensor
    position_ids: Tensor
    boundaries: Tensor
    max_length: int
    predict_at: Tensor
    targets: Tensor
    response_lengths: tuple[int, ...]


def pack(sequences: Sequence[TokenSequence], device: torch.device) -> PackedBatch:
    """Concatenate. No sequences become one idle token without targets, for a rank that only joins collectives."""
    if not sequences:
        sequences = [TokenSequence(np.zeros(1, np.int32), 1)]
    lengths = [len(sequence.token_ids) for sequence in sequences]
    boundaries = np.cumsum([0, *lengths])
    predict_at = [
        np.arange(start + sequence.prompt_tokens - 1, start + length - 1)
        for start, length, sequence in zip(boundaries, lengths, sequences, strict=False)
    ]
    targets = [sequence.token_ids[sequence.prompt_tokens :] for sequence in sequences]

    def tensor(parts: Sequence[np.ndarray], dtype: torch.dtype = torch.int64) -> Tensor:
        return on_device(torch.from_numpy(np.concatenate(parts)).to(dtype), device)

    return PackedBatch(
        input_ids=tensor([sequence.token_ids for sequence in sequences])[None],
        position_ids=tensor([np.arange(length) for length in lengths])[None],
        boundaries=tensor([boundaries], torch.int32),
        max_length=max(lengths),
        predict_at=tensor(predict_at),
        targets=tensor(targets),
        response_lengths=tuple(sequence.response_tokens for sequence in sequences),
    )


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor. Pinned for a GPU: a copy from pageable memory waits for all that the GPU has still to do."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
