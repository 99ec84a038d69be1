"""Several sequences in one row, one after another: no padding reaches the linear layers.

sequence A = prompt 5 6, response 7 8      sequence B = prompt 5 6, response 9 4 3
input_ids     5 6 7 9 4            a response's last token predicts nothing, so it is left out
position_ids  0 1 2 2 3
predict_at    1 2 1 3 4            the rows whose logits predict a response token
targets       7 8 9 4 3
read          0 1 2 0   0 1 3 4    attention has the sequences side by side: the row of each token, padded with 0
kept          0 1 2 6 7            where each row is among those

Here the two share their prompt, as those of a micro-batch on a CPU do where that leaves out enough rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rljob_trainer.rank.sequence import TokenSequence

_WORTH = 0.8
"""Share of the rows that may be left: to lay rows out for attention takes memory and time. On a CPU an update with 0.65
of its rows took a quarter less; one with 0.94 took as long as with all of them, and a sixth more memory."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the sequences are, for attention: n of them in T rows, the longest of L tokens.

    boundaries: [n + 1] int32, where each sequence starts, and T; None where sequences share prompts.
    max_length: L.
    read: [n L] int64; kept: [T] int64. None where sequences share nothing: they follow from the boundaries.
    """

    boundaries: Tensor | None
    max_length: int
    read: Tensor | None
    kept: Tensor | None


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """One micro-batch: n sequences in T rows.

    input_ids, position_ids: [1, T] int64. predict_at, targets: [sum of R] int64. response_lengths: [n].
    """

    input_ids: Tensor
    position_ids: Tensor
    layout: Layout
    predict_at: Tensor
    targets: Tensor
    response_lengths: tuple[int, ...]


def pack(sequences: Sequence[TokenSequence], device: torch.device, *, share: bool = False) -> PackedBatch:
    """Concatenate. No sequences become one idle token without targets, for a rank that only joins collectives.

    share: equal prompts come once, where that leaves out enough rows; for attention that goes by `read`.
    """
    if not sequences:
        sequences = [TokenSequence(np.zeros(1, np.int32), 1)]
    rows = _rows(sequences, share=False)
    shared = _rows(sequences, share=True) if share else rows
    sharing = _count(shared) < _WORTH * _count(rows)
    rows = shared if sharing else rows
    ids, positions = np.empty((2, _count(rows)), np.int64)
    for sequence, each in zip(sequences, rows, strict=True):
        ids[each] = sequence.token_ids[: len(each)]
        positions[each] = np.arange(len(each))
    lengths = [len(each) for each in rows]
    read, kept = _side_by_side(rows) if sharing else (None, None)

    def tensor(array: NDArray[np.int64], dtype: torch.dtype = torch.int64) -> Tensor:
        return on_device(torch.from_numpy(array).to(dtype), device)

    return PackedBatch(
        input_ids=tensor(ids)[None],
        position_ids=tensor(positions)[None],
        layout=Layout(
            boundaries=None if sharing else tensor(np.cumsum([0, *lengths]), torch.int32),
            max_length=max(lengths),
            read=None if read is None else tensor(read),
            kept=None if kept is None else tensor(kept),
        ),
        predict_at=tensor(np.concatenate([_predicting(each, own) for each, own in zip(rows, sequences, strict=True)])),
        targets=tensor(np.concatenate([each.token_ids[each.prompt_tokens :] for each in sequences]).astype(np.int64)),
        response_lengths=tuple(sequence.response_tokens for sequence in sequences),
    )


def _rows(sequences: Sequence[TokenSequence], *, share: bool) -> list[NDArray[np.int64]]:
    """The row of each token of each sequence but its response's last."""
    rows = []
    prompts: dict[bytes, NDArray[np.int64]] = {}
    end = 0
    for sequence in sequences:
        prompt = sequence.token_ids[: sequence.prompt_tokens].tobytes()
        known = prompts.get(prompt) if share else None
        if known is None:
            known = prompts[prompt] = np.arange(end, end + sequence.prompt_tokens)
            end += sequence.prompt_tokens
        response = np.arange(end, end + max(0, sequence.response_tokens - 1))
        end += len(response)
        rows.append(np.concatenate([known, response]))
    return rows


def _side_by_side(rows: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Layout's read and kept."""
    read = np.zeros((len(rows), max(len(each) for each in rows)), np.int64)
    for each, place in zip(rows, read, strict=True):
        place[: len(each)] = each
    kept = np.empty(_count(rows), np.int64)
    kept[read.ravel()[::-1]] = np.arange(read.size)[::-1]  # of equal rows the first, which is the last one written
    return read.ravel(), kept


def _count(rows: Sequence[NDArray[np.int64]]) -> int:
    return 1 + max(int(each[-1]) for each in rows)


def _predicting(rows: NDArray[np.int64], sequence: TokenSequence) -> NDArray[np.int64]:
    """The rows of a sequence whose logits predict its response tokens."""
    return rows[sequence.prompt_tokens - 1 :][: sequence.response_tokens]


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor. Pinned for a GPU: a copy from pageable memory waits for all that the GPU has still to do."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
