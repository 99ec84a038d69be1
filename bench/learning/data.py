"""What a task trains on and is validated on."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from bench.learning.arms import Task
from rljob_api.validation import load_rljob
from rljob_trainer.data.tasks import read_synthetic

Rows = Sequence[Mapping[str, Any]]


def digest(task: Task) -> str:
    """Of all rows: results with another one are of another task, whatever its name."""
    data = load_rljob(task.example, []).spec.data
    rows = [_rows(data.train), _rows(data.validation)]
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:8]


def validation_prompts(task: Task) -> list[str]:
    return [row["prompt"][0]["content"] for row in _rows(load_rljob(task.example, []).spec.data.validation)]


def _rows(sources: Sequence[str]) -> Rows:
    return [row for source in sources for row in read_synthetic(source, "spec.data")]
