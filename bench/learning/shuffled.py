"""Reward function of the control: every training response gets the reward that another one earned.

Rewards go through a buffer: the response's own reward goes in, one drawn at random of the others comes out. So the
rewards that are paid are those that were earned, only by others. Validation is scored as ever.
"""

import importlib
import random
from collections.abc import Mapping
from typing import Any

from rljob_trainer.rewards.protocol import Call

WAITING = 64
"""Rewards in the buffer."""

_buffer: list[float] = []
_rng = random.Random(0)


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any],
    builtin: str,
    settings: Mapping[str, Any],
) -> float:
    """builtin, settings: the reward that the task has, and its arguments."""
    reward = importlib.import_module(f"rljob_trainer.rewards.builtin.{builtin}").Reward(**settings)
    own = float(reward(Call(data_source, solution_str, ground_truth, extra_info)))
    if extra_info["split"] == "validation":
        return own
    _buffer.append(own)
    others = len(_buffer) - 1
    if others == 0:
        return own
    index = _rng.randrange(others)
    return _buffer.pop(index) if others >= WAITING else _buffer[index]
