"""Several trajectories in one row, one after another: no padding reaches the linear layers.

trajectory A = prompt 5 6, answer 7 8      trajectory B = prompt 5 6, answer 9, tool result 4, answer 3
input_ids     5 6 7 9 4            what is behind the last token but one in the loss predicts nothing: it is left out
position_ids  0 1 2 2 3
predict_at    1 2 1 3              the rows whose logits predict a token in the loss
targets       7 8 9 3              the tool result is read, and no target
read          0 1 2 0   0 1 3 4    attention has the trajectories side by side: the row of each token, padded with 0
kept          0 1 2 6 7            where each row is among those

Here the two share their prompt (the tokens before the first one in the loss), as those of a micro-batch on a CPU do if
that leaves out enough rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rljob_trainer.types import Ids, Trajectory, supervised

_WORTH = 0.8
"""Share of the rows that may be left: to lay rows out for attention takes memory and time. On a CPU an update with 0.65
of its rows took a quarter less; one with 0.94 took as long as with all of them, and a sixth more memory."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the trajectories are in a pack, for attention: n of them in T rows, the longest of L tokens.

    boundaries: [n + 1] int32, where each trajectory starts, and T; None if trajectories share prompts.
    max_length: L.
    read: [n L] int64; kept: [T] int64. None if trajectories share nothing: they follow from the boundaries.
    """

    boundaries: Tensor | None
    max_length: int
    read: Tensor | None
    kept: Tensor | None


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """One micro-batch: n trajectories with R tokens in the loss each, in one pack of T rows or apart.

    input_ids: [1, T] int64; apart [n, L], padded on the right, which causal layers never see.
    position_ids: [1, T] int64; layout: both None if the trajectories are apart.
    predict_at: into the flat input_ids, and targets: [sum of R] int64. loss_tokens: R of each, [n].
    temperature: by which the logits of the targets are divided; [sum of R] float32 if turns differ in it.
    candidates: [sum of R, K] int64, tokens to be scored besides the targets; None without any.
    """

    input_ids: Tensor
    position_ids: Tensor | None
    layout: Layout | None
    predict_at: Tensor
    targets: Tensor
    loss_tokens: tuple[int, ...]
    temperature: float | Tensor
    candidates: Tensor | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """What a pass computes of one trajectory. token_ids: [length] that are read, the first `prompt` may be shared.

    targets_at: [R], places of the tokens in the loss, the last of them behind token_ids. targets: [R].
    """

    token_ids: Ids
    prompt: int
    targets_at: NDArray[np.int64]
    targets: Ids


def pack(
    trajectories: Sequence[Trajectory], device: torch.device, *, share: bool = False, apart: bool = False
) -> PackedBatch:
    """Concatenate. No trajectories become two idle tokens without targets, for a rank that only joins collectives.

    share: equal prompts come once, if that leaves out enough rows; for attention that goes by `read`.
    apart: each trajectory is a row of its own, for layers that read a row as one sequence.
    """
    trajectories = trajectories or [supervised(np.zeros(2, np.int32), [])]
    parts = [_part(trajectory) for trajectory in trajectories]
    rows = _rows_apart(parts) if apart else _rows(parts, share=False)
    shared = _rows(parts, share=True) if share else rows
    sharing = _count(shared) < _WORTH * _count(rows)
    rows = shared if sharing else rows
    longest = max(len(each) for each in rows)
    ids, positions = np.zeros((2, len(rows) * longest if apart else _count(rows)), np.int64)
    for part, each in zip(parts, rows, strict=True):
        ids[each] = part.token_ids
        positions[each] = np.arange(len(each))
    predicting = [each[part.targets_at - 1] for each, part in zip(rows, parts, strict=True)]

    def tensor(array: NDArray[np.int64]) -> Tensor:
        return on_device(torch.from_numpy(array), device)

    return PackedBatch(
        input_ids=tensor(ids).view(-1, longest if apart else len(ids)),
        position_ids=None if apart else tensor(positions)[None],
        layout=None if apart else _layout(rows, device, sharing=sharing),
        predict_at=tensor(np.concatenate(predicting)),
        targets=tensor(np.concatenate([part.targets for part in parts]).astype(np.int64)),
        loss_tokens=tuple(len(part.targets) for part in parts),
        temperature=_temperature(trajectories, device),
    )


def _part(trajectory: Trajectory) -> _Part:
    targets_at = np.flatnonzero(trajectory.in_loss)
    idle = min(2, len(trajectory.token_ids))
    prompt, length = (int(targets_at[0]), int(targets_at[-1])) if targets_at.size else (idle, idle)
    return _Part(trajectory.token_ids[:length], prompt, targets_at, trajectory.token_ids[targets_at])


def _rows(parts: Sequence[_Part], *, share: bool) -> list[NDArray[np.int64]]:
    """The row of each token that is read, [length] for each part."""
    rows = []
    prompts: dict[bytes, NDArray[np.int64]] = {}
    end = 0
    for part in parts:
        prompt = part.token_ids[: part.prompt].tobytes()
        known = prompts.get(prompt) if share else None
        if known is None:
            known = prompts[prompt] = np.arange(end, end + part.prompt)
            end += part.prompt
        rest = np.arange(end, end + len(part.token_ids) - part.prompt)
        end += len(rest)
        rows.append(np.concatenate([known, rest]))
    return rows


def _rows_apart(parts: Sequence[_Part]) -> list[NDArray[np.int64]]:
    """As _rows, of parts that are padded to the longest."""
    longest = max(len(part.token_ids) for part in parts)
    return [index * longest + np.arange(len(part.token_ids)) for index, part in enumerate(parts)]


def _layout(rows: Sequence[NDArray[np.int64]], device: torch.device, *, sharing: bool) -> Layout:
    lengths = [len(each) for each in rows]
    if not sharing:
        boundaries = torch.from_numpy(np.cumsum([0, *lengths])).to(torch.int32)
        return Layout(on_device(boundaries, device), max(lengths), None, None)
    read, kept = (on_device(torch.from_numpy(array), device) for array in _side_by_side(rows))
    return Layout(None, max(lengths), read, kept)


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


def _temperature(trajectories: Sequence[Trajectory], device: torch.device) -> float | Tensor:
    """One number if all tokens in the loss have the same: to divide by it takes no memory."""
    if {turn.temperature or 1.0 for each in trajectories for turn in each.turns} <= {1.0}:
        return 1.0
    values = np.concatenate([each.temperatures()[each.in_loss] for each in trajectories])
    if not values.size or (values == values[0]).all():
        return float(values[0]) if values.size else 1.0
    return on_device(torch.from_numpy(values), device)


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor. Pinned for a GPU: a copy from pageable memory waits for all that the GPU has still to do."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
