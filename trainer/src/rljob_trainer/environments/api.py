"""What an environment's code sees. Needs only Python 3.11.

async def rollout(task, policy):
    messages = list(task.messages)
    answer = await policy.chat(messages)
    messages += [answer, {"role": "user", "content": "Are you sure?"}]
    last = await policy.chat(messages)
    return float(last["content"] == task.ground_truth)
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Message = dict[str, Any]


class Task(NamedTuple):
    """One row of data.

    id: "EPOCH/ROW/TRY". messages: the row's prompt. token_ids: the prompt as tokens.
    ground_truth, extra_info, data_source: the row's own.
    """

    id: str
    messages: Sequence[Message]
    token_ids: Sequence[int]
    ground_truth: Any
    extra_info: Mapping[str, Any]
    data_source: str


class Answer(NamedTuple):
    """What policy.generate returns. token_ids: without the prompt. text: without the token that ended it.

    finish_reason: stop, or length at a limit of tokens.
    """

    token_ids: list[int]
    text: str
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Episode:
    """What a rollout may return, in place of its reward alone.

    reward: None without one; rewards.functions add to it.
    turn_rewards: one for each turn of the policy, in the order in which they began; without `reward` their sum is the
        reward.
    metrics: numbers to log, as episode/NAME.
    """

    reward: float | None = None
    turn_rewards: Sequence[float] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


class EpisodeOver(Exception):
    """The policy takes no further turn: the context is full, or environment.maxTurns is reached.

    A rollout that does not catch it ends with what it was given so far, and without a reward of its own.
    """


class Policy:
    """The policy, as one episode sees it. sample: which attempt at the task this is, from 0."""

    def __init__(self, sample: int, ask: Callable[[str, Any], Awaitable[Any]]) -> None:
        self.sample, self._ask = sample, ask

    async def chat(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> Message:
        """The policy's next message. tools: JSON schemas of functions that it may call, for the chat template.

        Returns {role: assistant, content}, with tool_calls, [{id, type, function: {name, arguments}}], if there are
        any. Append it as it is to `messages` for the next turn. Raises EpisodeOver.
        """
        answer: Message = await self._ask("chat", {"messages": list(messages), "tools": tools and list(tools)})
        return answer

    async def generate(self, token_ids: Sequence[int]) -> Answer:
        """The policy's continuation of these tokens. Raises EpisodeOver."""
        return Answer(*await self._ask("generate", [int(token) for token in token_ids]))

    async def encode(self, text: str) -> list[int]:
        """Token ids of a text, with no token added."""
        ids: list[int] = await self._ask("encode", text)
        return ids

    async def endpoint(self) -> tuple[str, str]:
        """base_url and api_key of an OpenAI-compatible endpoint, whose answers are turns of this episode."""
        base_url, api_key = await self._ask("endpoint", None)
        return base_url, api_key
