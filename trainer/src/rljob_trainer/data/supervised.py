"""Examples with given responses: one to imitate, or a preferred and a rejected one."""

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rljob_api.v1alpha1 import RLJobSpec
from rljob_trainer.data.chat import ChatFormat
from rljob_trainer.data.columns import PREFERENCE, SUPERVISED
from rljob_trainer.data.conversation import read_answer, read_supervised
from rljob_trainer.data.rows import Rows
from rljob_trainer.data.sources import supervised_rows
from rljob_trainer.data.tokenized import Limits, TokenizedRows, tokenize
from rljob_trainer.errors import DataError
from rljob_trainer.types import Trajectory, supervised

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class SupervisedExample:
    """One row to imitate, or a pair.

    id: "EPOCH/ROW".
    trajectory: prompt and answer as the chat template renders them; the answer with its end token is in the loss.
    rejected: the same of the answer that `trajectory`'s is preferred to; None in a row to imitate.
    """

    id: str
    trajectory: Trajectory
    rejected: Trajectory | None = None

    @property
    def rows(self) -> list[Trajectory]:
        """What the policy learns from, the preferred one first."""
        return [self.trajectory] if self.rejected is None else [self.trajectory, self.rejected]


class SupervisedDataset:
    """The examples of some files that fit maxPromptTokens and maxResponseTokens."""

    def __init__(self, rows: Rows, chat: ChatFormat, limits: Limits) -> None:
        self._tokens = tokenize(rows, read_supervised, SUPERVISED, chat, limits)

    @property
    def fingerprint(self) -> str:
        """Changes with any row's tokens or position."""
        return self._tokens.fingerprint

    def __len__(self) -> int:
        return len(self._tokens.rows)

    def item(self, index: int, epoch: int | str) -> SupervisedExample:
        """Example `index` with the id "EPOCH/ROW"; ROW counts the rows of the files."""
        return SupervisedExample(f"{epoch}/{self._tokens.rows[index]}", _answered(self._tokens, index))


class PreferenceDataset:
    """The pairs of some files of which prompt and both answers fit the limits."""

    def __init__(self, rows: Rows, chat: ChatFormat, limits: Limits) -> None:
        self._chosen, self._rejected = (
            tokenize(rows, partial(read_answer, column=column), PREFERENCE, chat, limits)
            for column in ("chosen", "rejected")
        )
        self._rows, *self._at = np.intersect1d(self._chosen.rows, self._rejected.rows, return_indices=True)
        if not len(self._rows):
            message = "no row has a chosen and a rejected response that both fit; raise the limits"
            raise DataError(message, field="spec.data.maxResponseTokens")

    @property
    def fingerprint(self) -> str:
        """Changes with any row's tokens or position."""
        return f"{self._chosen.fingerprint} {self._rejected.fingerprint}"

    def __len__(self) -> int:
        return len(self._rows)

    def item(self, index: int, epoch: int | str) -> SupervisedExample:
        """Pair `index` with the id "EPOCH/ROW"."""
        sides = zip((self._chosen, self._rejected), self._at, strict=True)
        return SupervisedExample(
            f"{epoch}/{self._rows[index]}", *(_answered(side, int(at[index])) for side, at in sides)
        )


def _answered(tokens: TokenizedRows, index: int) -> Trajectory:
    ids = tokens.ids(index)
    return supervised(ids, [slice(int(tokens.prompt_tokens[index]), len(ids))])


def load_supervised(
    spec: RLJobSpec, tokenizer: "PreTrainedTokenizerBase", base_dir: Path, *, now: datetime | None = None
) -> SupervisedDataset | PreferenceDataset:
    """The examples of sft.data, or of data.train if that is empty; relative paths start at `base_dir`.

    With preset dpo, pairs.

    now: as ChatFormat's.

    Raises:
        DataError: names the file, the row and the remedy.
    """
    limits = Limits(spec.data.max_prompt_tokens, spec.data.max_response_tokens, spec.data.overlong_prompts)
    chat = ChatFormat(tokenizer, spec.data.template_arguments, now)
    dataset = PreferenceDataset if spec.algorithm.preset == "dpo" else SupervisedDataset
    return dataset(supervised_rows(spec, base_dir), chat, limits)
