"""Prompts of RL training and validation."""

import math
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from rljob_api.v1alpha1 import Data
from rljob_trainer.data.chat import ChatFormat
from rljob_trainer.data.columns import RL
from rljob_trainer.data.conversation import ground_truth, read_answered, read_messages, read_prompt
from rljob_trainer.data.rows import Rows
from rljob_trainer.data.sources import prompt_rows
from rljob_trainer.data.tokenized import Limits, tokenize
from rljob_trainer.types import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PromptDataset:
    """The prompts of some files that fit maxPromptTokens; with responses, of rows whose response fits too."""

    def __init__(self, rows: Rows, chat: ChatFormat, limits: Limits, *, responses: bool = False) -> None:
        self._rows = rows
        self._tokens = tokenize(rows, read_answered if responses else read_prompt, RL, chat, limits)

    @property
    def fingerprint(self) -> str:
        """Changes with any row's tokens, ground truth or position."""
        return self._tokens.fingerprint

    def __len__(self) -> int:
        return len(self._tokens.rows)

    def data_sources(self) -> list[str]:
        """The values of the column data_source, in the order of the files; reads all rows."""
        return list(dict.fromkeys(row["data_source"] for rows in self._rows.batches() for row in rows))

    def difficulties(self, key: str) -> NDArray[np.float64]:
        """[rows], the number under `key` of each row's extra_info.

        Raises:
            DataError: names the first row without one, and the keys that it has.
        """
        return np.array([self._difficulty(int(row), key) for row in self._tokens.rows])

    def _difficulty(self, row: int, key: str) -> float:
        extra = self._rows[row].get("extra_info") or {}
        value = extra.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            keys = ", ".join(map(str, extra)) or "no key"
            raise self._rows.error(
                row, f"data.difficulty needs a number in extra_info.{key}, not {value!r}; extra_info has {keys}"
            )
        return float(value)

    def item(self, index: int, epoch: int | str) -> Task:
        """Task `index` with the id "EPOCH/ROW/0"; ROW counts the rows of the files."""
        return self._task(index, f"{epoch}/{int(self._tokens.rows[index])}/0")

    def item_of(self, task_id: str) -> Task:
        """The task of that id. Raises KeyError for a row that the files do not have."""
        return self._task(self.index_of(task_id), task_id)

    def index_of(self, task_id: str) -> int:
        """Its place among the rows that fit. Raises KeyError as item_of."""
        number = int(task_id.split("/")[1])
        index = int(np.searchsorted(self._tokens.rows, number))
        if index == len(self) or self._tokens.rows[index] != number:
            raise KeyError(task_id)
        return index

    def _task(self, index: int, task_id: str) -> Task:
        row = self._rows[int(self._tokens.rows[index])]
        ids, end = self._tokens.ids(index), int(self._tokens.prompt_tokens[index])
        return Task(
            id=task_id,
            messages=read_messages(row, "prompt"),
            token_ids=ids[:end],
            response=ids[end:] if len(ids) > end else None,
            ground_truth=ground_truth(row),
            extra_info=row.get("extra_info") or {},
            data_source=row["data_source"],
        )

    def all(self, epoch: int | str) -> list[Task]:
        """Every task, in the order of the files; validation uses the id "validation/ROW/0"."""
        return [self.item(index, epoch) for index in range(len(self))]


def load_prompts(
    data: Data, tokenizer: "PreTrainedTokenizerBase", base_dir: Path, part: Literal["train", "validation"] = "train",
    *, now: datetime | None = None, responses: bool = False,
) -> PromptDataset:  # fmt: skip
    """The prompts of data.train or data.validation; relative paths start at `base_dir`. now: as ChatFormat's.

    responses: tasks have the responses of their rows too.

    Raises:
        DataError: names the file, the row and the remedy.
    """
    limits = Limits(data.max_prompt_tokens, data.max_response_tokens, data.overlong_prompts)
    chat = ChatFormat(tokenizer, data.template_arguments, now)
    rows = prompt_rows(data, part, base_dir)
    if responses:
        rows.require("response")
    return PromptDataset(rows, chat, limits, responses=responses)
