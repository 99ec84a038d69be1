"""Answers to the same prompts before and after training, from the samples of the validations."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_trainer.progress.history import parse_lines
from rljob_trainer.progress.state import last_attempt
from rljob_trainer.types import Message, text_of
from rljob_trainer.volume import Volume


@dataclass(frozen=True, slots=True)
class Answer:
    """One question and its responses.

    question: the user's last message. before, after: the responses at the first and the last validation.
    ground_truth: JSON unless it is text, such as countdown's {"target":24,"numbers":[3,5,9]}.
    """

    question: str
    before: str
    after: str
    ground_truth: str


def compare_answers(volume: Volume, most: int) -> tuple[int, int, list[Answer]]:
    """(first step, last step, answers), for at most `most` prompts; no answers before the second validation."""
    rows = [row for row in sample_rows(volume) if row["response"] is not None]
    steps = sorted({row["step"] for row in rows})
    if len(steps) < 2:
        return 0, 0, []
    first, last = ({row["prompt"]: row for row in rows if row["step"] == step} for step in (steps[0], steps[-1]))
    answers = [
        Answer(before["question"], before["response"], last[prompt]["response"], _text(before["groundTruth"]))
        for prompt, before in first.items()
        if prompt in last
    ]
    return steps[0], steps[-1], answers[:most]


def sample_rows(volume: Volume) -> list[Mapping[str, Any]]:
    """What Reporting.samples wrote, of all attempts."""
    return [row for attempt in range(1, last_attempt(volume) + 1) for row in _rows(volume, attempt)]


def question(messages: Sequence[Message]) -> str:
    """The content of the user's last message; of the last message if the user has none."""
    of_user = [message for message in messages if message["role"] == "user"] or messages
    return text_of(of_user[-1])


def _text(truth: Any) -> str:
    return truth if isinstance(truth, str) else json.dumps(truth, ensure_ascii=False, separators=(",", ":"))


def _rows(volume: Volume, attempt: int) -> list[Mapping[str, Any]]:
    try:
        return list(parse_lines(volume.samples(attempt).read_text()))
    except FileNotFoundError:
        return []
