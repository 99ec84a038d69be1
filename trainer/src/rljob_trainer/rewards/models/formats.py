"""Requests to a reward model's server for one response, and the scores in its answers. Pure.

classifier   POST /pooling              {messages, task: classify}     -> one float32, as base64: JSON knows no NaN
generative   POST /v1/chat/completions  {messages, temperature: 0}     -> text, in which scorePattern finds a number
"""

import base64
import binascii
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rljob_api.v1alpha1 import RewardModel
from rljob_trainer.errors import RewardError
from rljob_trainer.types import Task, text_of

MAX_TOKENS = 512
"""Default longest answer of a judge."""

_PLACEHOLDER = re.compile(r"\{(prompt|response|ground_truth)\}")
_SHOWN = 160


class Unscored(Exception):
    """Why an answer has no score."""


class Format(Protocol):
    """One kind of reward model. path: appended to the server's URL."""

    @property
    def path(self) -> str: ...

    def request(self, task: Task, response: str) -> dict[str, Any]:
        """The body to post."""

    def score(self, answer: Any) -> float:
        """A finite number. Raises Unscored."""


@dataclass(frozen=True, slots=True)
class Classifier:
    """A model with one label. template: None to send the conversation itself. model: its name at a server elsewhere."""

    template: str | None
    model: str | None = None
    path: str = "/pooling"

    def request(self, task: Task, response: str) -> dict[str, Any]:
        text: dict[str, Any]
        if self.template is None:
            text = {"messages": [*task.messages, {"role": "assistant", "content": response}]}
        else:
            text = {"input": filled(self.template, task, response)}
        text |= {"task": "classify", "use_activation": False, "encoding_format": "base64"}
        return text | ({"model": self.model} if self.model else {})

    def score(self, answer: Any) -> float:
        try:
            numbers = np.frombuffer(base64.b64decode(answer["data"][0]["data"]), dtype=np.float32)
        except (KeyError, IndexError, TypeError, ValueError, binascii.Error) as error:
            raise Unscored(f"answered {_short(answer)}, which has no scores") from error
        if len(numbers) != 1:
            raise Unscored(f"gave {len(numbers)} scores; a classifier needs one label (num_labels: 1)")
        return _finite(float(numbers[0]))


@dataclass(frozen=True, slots=True)
class Judge:
    """A chat model. pattern: its only group matches the score. model: its name at a server elsewhere."""

    template: str
    pattern: re.Pattern[str]
    max_tokens: int
    model: str | None = None
    path: str = "/v1/chat/completions"

    def request(self, task: Task, response: str) -> dict[str, Any]:
        message = {"role": "user", "content": filled(self.template, task, response)}
        body = {"messages": [message], "temperature": 0, "max_tokens": self.max_tokens}
        return body | ({"model": self.model} if self.model else {})

    def score(self, answer: Any) -> float:
        try:
            text = str(answer["choices"][0]["message"]["content"] or "")
        except (KeyError, IndexError, TypeError) as error:
            raise Unscored(f"answered {_short(answer)}, which is not a chat completion") from error
        scores: list[str] = self.pattern.findall(text)
        if not scores:
            raise Unscored(f"answered without a score: scorePattern is not in {_short(text)}")
        try:
            return _finite(float(scores[-1]))
        except ValueError as error:
            raise Unscored(f"gave {_short(scores[-1])} as score, not a number") from error


def format_of(model: RewardModel, field: str) -> Format:
    """field: the model's field in the spec. Raises RewardError for an invalid scorePattern."""
    name = model.path if model.url else None
    if model.kind == "classifier":
        return Classifier(model.prompt_template, name)
    try:
        pattern = re.compile(str(model.score_pattern))
    except re.error as error:
        raise RewardError(f"is not a regular expression: {error}; correct it", field=f"{field}.scorePattern") from error
    if pattern.groups != 1:
        message = f"has {pattern.groups} groups; use exactly one, for the score, and write others as (?:...)"
        raise RewardError(message, field=f"{field}.scorePattern")
    return Judge(str(model.prompt_template), pattern, model.max_tokens or MAX_TOKENS, name)


def filled(template: str, task: Task, response: str) -> str:
    """The template with its placeholders replaced once: inserted text is not expanded."""
    truth = task.ground_truth
    values: Mapping[str, str] = {
        "prompt": "\n\n".join(text_of(message) for message in task.messages),
        "response": response,
        "ground_truth": truth if isinstance(truth, str) else json.dumps(truth, ensure_ascii=False, default=str),
    }
    return _PLACEHOLDER.sub(lambda found: values[found[1]], template)


def _finite(score: float) -> float:
    if not math.isfinite(score):
        raise Unscored(f"gave {score} as score")
    return score


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
