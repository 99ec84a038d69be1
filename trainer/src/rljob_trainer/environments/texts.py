r"""Prompts that are text: one that extends what the policy wrote keeps the tokens that were sampled.

"4+4=" -> "8 "    "4+4=8 5+5=" -> ids of "4+4=", the sampled ids of "8 ", and new ones of "5+5="
"""

from collections.abc import Sequence

import numpy as np

from rljob_trainer.environments.conversation import Tokenized
from rljob_trainer.types import Ids


class Texts:
    """The texts of one episode."""

    def __init__(self, tokenized: Tokenized) -> None:
        self._tokenized = tokenized
        self._known: dict[str, Ids] = {}

    def prompt(self, text: str) -> Ids:
        """Token ids of a prompt; nothing is added to it."""
        known = max((each for each in self._known if text.startswith(each)), key=len, default="")
        added = self._encode(text[len(known) :])
        return np.concatenate([self._known[known], added]) if known else added

    def answered(self, prompt: str, token_ids: Ids, answer: Ids) -> None:
        """Remember an answer [R] to the prompt `token_ids` [P], with and without the token that ended it."""
        for ids in (answer[:-1], answer):
            text = prompt + self._tokenized.text(ids.tolist())
            self._known[text] = np.concatenate([token_ids, ids]).astype(np.int32)

    def _encode(self, text: str) -> Ids:
        ids: Sequence[int] = self._tokenized.chat.encode([text])[0] if text else []
        return np.array(ids, np.int32)
