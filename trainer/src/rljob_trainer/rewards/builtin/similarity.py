"""similarity: how similar the response is to the ground truth, from 0 to 1; a dense reward for text tasks."""

import difflib
from typing import Literal

from pydantic.dataclasses import dataclass

from rljob_trainer.rewards.builtin import ARGUMENTS
from rljob_trainer.rewards.builtin.truth import texts
from rljob_trainer.rewards.protocol import Call


@dataclass(frozen=True, config=ARGUMENTS)
class Reward:
    """ratio: 2 M / (|response| + |truth|), where M characters are in common blocks (difflib, Ratcliff and Obershelp).

    positions: the share of characters that are right at their position, of the longer text.
    If the ground truth is a list, the most similar element counts.
    For "cbx" against "cba", ratio is 2 x 2 / 6 = 2/3, and positions is 2/3; for "xcba", 6/7 and 0.
    """

    method: Literal["ratio", "positions"] = "ratio"

    def __call__(self, call: Call) -> float:
        response = call.solution_str.strip()
        return max(self._similar(response, truth.strip()) for truth in texts(call.ground_truth))

    def _similar(self, response: str, truth: str) -> float:
        if self.method == "ratio":
            return difflib.SequenceMatcher(None, response, truth, autojunk=False).ratio()
        longest = max(len(response), len(truth))
        return sum(a == b for a, b in zip(response, truth, strict=False)) / longest if longest else 1.0
