"""Examples with a given response, for supervised fine-tuning."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.v1alpha1 import RLJobSpec
from rljob_trainer.data.chat import ChatFormat
from rljob_trainer.data.columns import SUPERVISED
from rljob_trainer.data.conversation import read_supervised
from rljob_trainer.data.rows import Rows
from rljob_trainer.data.sources import supervised_rows
from rljob_trainer.data.tokenized import Limits, tokenize
from rljob_trainer.types import Trajectory, supervised

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class SupervisedExample:
    """One row to imitate.

    id: "EPOCH/ROW".
    trajectory: prompt and answer as the chat template renders them; the answer with its end token is in the loss.
    """

    id: str
    trajectory: Trajectory


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
        ids, prompt = self._tokens.ids(index), int(self._tokens.prompt_tokens[index])
        return SupervisedExample(f"{epoch}/{self._tokens.rows[index]}", supervised(ids, [slice(prompt, len(ids))]))


def load_supervised(
    spec: RLJobSpec, tokenizer: "PreTrainedTokenizerBase", base_dir: Path, *, now: datetime | None = None
) -> SupervisedDataset:
    """The examples of sft.data, or of data.train if that is empty; relative paths start at `base_dir`.

    now: as ChatFormat's.

    Raises:
        DataError: names the file, the row and the remedy.
    """
    limits = Limits(spec.data.max_prompt_tokens, spec.data.max_response_tokens, spec.data.overlong_prompts)
    chat = ChatFormat(tokenizer, spec.data.template_arguments, now)
    return SupervisedDataset(supervised_rows(spec, base_dir), chat, limits)
