"""Reward function of the control: every training response gets the reward that another one earned.

Rewards go through a buffer: the response's own reward goes in, one drawn at random of those that responses to other
prompts earned comes out. So the rewards that are paid are those that were earned, and say nothing of whom they are paid
to, nor of those that it is compared with. Validation is scored as ever.
"""

import importlib
import random
from collections.abc import Mapping
from typing import Any

from rljob_trainer.rewards.protocol import Call

WAITING = 64
"""Rewards in the buffer."""

_buffer: list[tuple[Any, float]] = []
"""Whose prompt's, and the reward."""

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
    prompt = extra_info["index"]
    others = [place for place, (whose, _) in enumerate(_buffer) if whose != prompt]
    _buffer.append((prompt, own))
    if not others:
        return own
    place = _rng.choice(others)
    return (_buffer.pop(place) if len(_buffer) > WAITING else _buffer[place])[1]
