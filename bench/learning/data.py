"""What a task's example is: its spec, and the rows that it trains on and is validated on."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from bench.learning.arms import Task
from rljob_api.validation import load_rljob
from rljob_trainer.data.tasks import read_synthetic

Rows = Sequence[Mapping[str, Any]]


def digest(task: Task) -> str:
    """Of its example's spec and all rows. Results with another one are of another job, whatever the task's name.

    What only repeats a default does not count, nor does a comment; a default that changes shows in the commit alone.
    """
    spec = load_rljob(task.example, []).spec
    rows = _hash([_rows(spec.data.train), _rows(spec.data.validation)])
    return _hash([spec.model_dump(mode="json", by_alias=True, exclude_defaults=True), rows])


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def validation_prompts(task: Task) -> list[str]:
    return [row["prompt"][0]["content"] for row in _rows(load_rljob(task.example, []).spec.data.validation)]


def _rows(sources: Sequence[str]) -> Rows:
    return [row for source in sources for row in read_synthetic(source, "spec.data")]
