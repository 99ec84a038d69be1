"""The OpenAI API's requests and answers, as far as the endpoint has them.

A request may set the limits of its turn. How tokens are sampled is the job's decision (spec.rollout): other values of
temperature, top_p, top_k and seed have no effect and are logged. What would change the probabilities without the
trainer's knowledge, such as penalties or a grammar, is refused.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rljob_trainer.environments.session import Chatted, Completed, TurnLimits
from rljob_trainer.types import Message, text_of

Json = dict[str, Any]
Zero = Annotated[float, Field(ge=0, le=0)]
_SAMPLING = ("temperature", "top_p", "top_k", "seed")


class _StreamOptions(BaseModel):
    include_usage: bool = False


class _Request(BaseModel):
    """What chat completions and completions share."""

    model_config = ConfigDict(extra="forbid")

    model: str = "policy"
    max_tokens: int | None = Field(None, ge=1)
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    n: Literal[1] | None = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    frequency_penalty: Zero | None = None
    presence_penalty: Zero | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None
    user: str | None = None

    def asked_sampling(self) -> list[str]:
        """Names of sampling parameters that the request sets."""
        return [name for name in _SAMPLING if getattr(self, name) is not None]

    def limits(self, most: int | None) -> TurnLimits:
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return TurnLimits(most, tuple(each for each in stop if each))

    @property
    def usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(_Request):
    """The body of POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: int | None = Field(None, ge=1)
    response_format: Mapping[Literal["type"], Literal["text"]] | None = None
    logprobs: Literal[False] | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None

    def turn_limits(self) -> TurnLimits:
        return self.limits(self.max_completion_tokens or self.max_tokens)

    def offered(self) -> list[dict[str, Any]] | None:
        """The tools that the policy may call."""
        return None if self.tool_choice == "none" else self.tools

    def plain_messages(self) -> list[Message]:
        """The conversation as chat templates read it. Raises ValueError for content that is not text."""
        return [_plain(message) for message in self.messages]


class CompletionRequest(_Request):
    """The body of POST /v1/completions."""

    prompt: str | list[int] | Annotated[list[str | list[int]], Field(min_length=1, max_length=1)]
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    logprobs: None = None
    suffix: None = None

    def turn_limits(self) -> TurnLimits:
        return self.limits(self.max_tokens)

    def one_prompt(self) -> str | list[int]:
        prompt: Any = self.prompt
        return prompt[0] if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else prompt


class RewardRequest(BaseModel):
    """The body of POST /v1/reward, which is ours. metrics: numbers to log, as Episode.metrics."""

    model_config = ConfigDict(extra="forbid")

    reward: float = Field(ge=-1e30, le=1e30)
    metrics: dict[str, Annotated[float, Field(ge=-1e30, le=1e30)]] = Field(default_factory=dict)


def _plain(message: Mapping[str, Any]) -> Message:
    """A message without its null fields, its content as text, and the arguments of its calls as objects."""
    plain = {name: value for name, value in message.items() if value is not None}
    content = plain.get("content", "")
    if isinstance(content, list) and any("text" not in part for part in content if isinstance(part, dict)):
        raise ValueError("content has parts that are no text: send {type: text, text}")
    plain["content"] = text_of({"content": content})
    if plain.get("role") == "developer":
        plain["role"] = "system"
    if calls := plain.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call) for call in calls]
    for name in _ADDED:
        plain.pop(name, None)
    return plain


_ADDED = ("refusal", "annotations", "audio", "function_call")
"""What clients add to the answer's message when they send it back."""


def _plain_call(call: Mapping[str, Any]) -> Json:
    function = call["function"]
    arguments = function.get("arguments") or "{}"
    if isinstance(arguments, str):
        with suppress(ValueError):
            arguments = json.loads(arguments)
    return {"id": call["id"], "type": "function", "function": {"name": function["name"], "arguments": arguments}}


# ---------------------------------------------------------------------------------------------------- answers


def chat_answer(chatted: Chatted, number: int, request: ChatRequest) -> Json:
    message = dict(chatted.message)
    if calls := message.get("tool_calls"):  # only then may the content be null: agents take an empty answer for text
        message |= {"content": message["content"] or None, "tool_calls": [_call(each) for each in calls]}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _reason(chatted)}
    return {**_head("chatcmpl", "chat.completion", number, request), "choices": [choice], "usage": _usage(chatted)}


def chat_stream(chatted: Chatted, number: int, request: ChatRequest) -> Iterator[Json]:
    """The answer whole in one piece: an engine gives a turn when it has ended."""
    answer = chat_answer(chatted, number, request)
    delta = answer["choices"][0]["message"]
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
    head = _head("chatcmpl", "chat.completion.chunk", number, request)
    for part, reason in ((delta, None), ({}, _reason(chatted))):
        choice: Json = {"index": 0, "delta": part, "logprobs": None, "finish_reason": reason}
        yield {**head, "choices": [choice]}
    if request.usage:
        yield {**head, "choices": [], "usage": answer["usage"]}


def completion_answer(completed: Completed, number: int, request: CompletionRequest) -> Json:
    reason = completed.completion.finish_reason
    choice = {"index": 0, "text": completed.text, "logprobs": None, "finish_reason": reason}
    return {**_head("cmpl", "text_completion", number, request), "choices": [choice], "usage": _usage(completed)}


def completion_stream(completed: Completed, number: int, request: CompletionRequest) -> Iterator[Json]:
    answer = completion_answer(completed, number, request)
    usage = answer.pop("usage")
    yield answer
    if request.usage:
        yield {**answer, "choices": [], "usage": usage}


def error_answer(message: str, code: str, field: str | None = None) -> Json:
    return {"error": {"message": message, "type": "invalid_request_error", "param": field, "code": code}}


def _head(prefix: str, kind: str, number: int, request: _Request) -> Json:
    return {"id": f"{prefix}-{number}", "object": kind, "created": int(time.time()), "model": request.model}


def _reason(chatted: Chatted) -> str:
    return "tool_calls" if chatted.message.get("tool_calls") else chatted.completion.finish_reason


def _call(call: Mapping[str, Any]) -> Json:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {"name": name, "arguments": written}}


def _usage(turn: Chatted | Completed) -> Mapping[str, int]:
    prompt, sampled = turn.prompt_tokens, len(turn.completion.token_ids)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def models_answer(names: Sequence[str] = ("policy",)) -> Json:
    return {"object": "list", "data": [{"id": each, "object": "model", "owned_by": "rljob"} for each in names]}
