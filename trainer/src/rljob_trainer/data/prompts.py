"""Prompts of RL training and validation."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rljob_api.v1alpha1 import Data
from rljob_trainer.data.conversation import ChatFormat, read_messages, read_prompt
from rljob_trainer.data.rows import Rows
from rljob_trainer.data.sources import prompt_rows
from rljob_trainer.data.tokenized import Limits, tokenize
from rljob_trainer.old_types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PromptDataset:
    """The prompts of some files that fit maxPromptTokens."""

    def __init__(self, rows: Rows, chat: ChatFormat, limits: Limits) -> None:
        self._rows = rows
        self._tokenizer = chat.tokenizer
        self._tokens = tokenize(rows, read_prompt, chat, limits)

    @property
    def fingerprint(self) -> str:
        """Changes with any row's tokens, ground truth or place."""
        return self._tokens.fingerprint

    def __len__(self) -> int:
        return len(self._tokens.rows)

    def item(self, index: int, epoch: int | str) -> Prompt:
        """Prompt `index` with the id "EPOCH/ROW"; ROW counts the rows of the files."""
        number = int(self._tokens.rows[index])
        row = self._rows[number]
        ids = self._tokens.ids(index)
        return Prompt(
            id=f"{epoch}/{number}",
            token_ids=ids,
            data_source=row["data_source"],
            ground_truth=row["reward_model"]["ground_truth"],
            extra_info=row.get("extra_info") or {},
            text=self._tokenizer.decode(ids.tolist()),
            messages=read_messages(row, "prompt"),
        )

    def all(self, epoch: int | str) -> list[Prompt]:
        """Every prompt, in the order of the files; validation uses the id "validation/ROW"."""
        return [self.item(index, epoch) for index in range(len(self))]


def load_prompts(
    data: Data, tokenizer: "PreTrainedTokenizerBase", base_dir: Path, part: Literal["train", "validation"] = "train"
) -> PromptDataset:
    """The prompts of data.train or data.validation; relative paths start at `base_dir`.

    Raises:
        DataError: names the file, the row and the remedy.
    """
    limits = Limits(data.max_prompt_tokens, data.max_response_tokens, data.overlong_prompts)
    return PromptDataset(prompt_rows(data, part, base_dir), ChatFormat(tokenizer), limits)
