"""The files of prompts and supervised examples, and the columns that they need.

The caller chooses how to open them: `open_rows` to train on them, `peek` to check them quickly.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from rljob_api.v1alpha1 import Data, RLJobSpec
from rljob_trainer.data.rows import Rows, open_rows

Open = Callable[[Sequence[str], Path, str], Rows]


def prompt_rows(data: Data, part: Literal["train", "validation"], base_dir: Path, opened: Open = open_rows) -> Rows:
    """The rows of data.train or data.validation.

    Raises:
        DataError: a file cannot be read, or lacks a column.
    """
    files = data.train if part == "train" else data.validation
    rows = opened(files, base_dir, f"spec.data.{part}")
    rows.require("data_source", "prompt")
    rows.refuse_media()
    return rows


def supervised_rows(spec: RLJobSpec, base_dir: Path, opened: Open = open_rows) -> Rows:
    """The rows of sft.data, or of data.train if that is empty.

    Raises:
        DataError: as prompt_rows.
    """
    own = spec.sft.data if spec.sft else []
    rows = opened(own or spec.data.train, base_dir, "spec.sft.data" if own else "spec.data.train")
    if spec.algorithm.preset == "dpo":
        rows.require("chosen", "rejected")
    else:
        rows.require_target()
    rows.refuse_media()
    return rows
