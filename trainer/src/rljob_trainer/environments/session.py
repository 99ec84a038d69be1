"""One try of one episode: answers what its environment asks for, within limits, and records each turn."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from rljob_trainer.data.rows import BadRow, is_text
from rljob_trainer.engines.engine import Completion
from rljob_trainer.environments.conversation import Conversation, Tokenized, before_stop
from rljob_trainer.environments.environment import Policy
from rljob_trainer.environments.recorder import Recorder
from rljob_trainer.environments.texts import Texts
from rljob_trainer.types import Episode, EpisodeStatus, Ids, Message, Task

Filter = Literal["train", "mask", "drop"]


@dataclass(frozen=True, slots=True)
class Limits:
    """turns: of an episode. tokens: of a context, prompt and answers.

    on_overflow, on_truncated: environment.onOverflow, for the limit of tokens, and onTruncated, for the others.
    """

    turns: int
    tokens: int
    on_overflow: Filter
    on_truncated: Filter


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """What one request of an agent sets: most tokens of the turn, and strings that end it."""

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()


class Chatted(NamedTuple):
    """A turn of chat. prompt_tokens: of the whole conversation before the answer."""

    message: Message
    prompt_tokens: int
    completion: Completion


class Completed(NamedTuple):
    """A turn that continues a text. text: without what ended it."""

    text: str
    prompt_tokens: int
    completion: Completion


class Over(Exception):
    """The policy takes no further turn."""


class Refused(Exception):
    """What the environment asked for cannot be done; its code reads why."""


class Session:
    """The policy's side of an episode."""

    def __init__(self, task: Task, policy: Policy, tokenized: Tokenized, limits: Limits) -> None:
        self.task, self._policy, self._tokenized, self._limits = task, policy, tokenized, limits
        self._conversation, self._recorder = Conversation(task, tokenized), Recorder()
        self._texts = Texts(tokenized)
        self._cut = self._overflowed = False
        policy.restart()

    @property
    def sample(self) -> int:
        return self._policy.sample

    async def call(self, method: str, argument: Any) -> Any:
        """What api.Policy's method returns.

        Raises Over at a limit and Refused for a wrong argument; JobError and InfrastructureError from engines.
        """
        match method, argument:
            case "chat", {"messages": list(messages), "tools": list() | None as tools}:
                return (await self.chat(messages, tools or None)).message
            case "generate", list(token_ids) if token_ids and all(isinstance(each, int) for each in token_ids):
                return await self._generate(token_ids)
            case "encode", str(text) if is_text(text):
                return self._tokenized.chat.encode([text])[0]
        raise Refused(f"the policy cannot {method} {argument!r:.80}")

    def episode(
        self, reward: float | None, turn_rewards: Sequence[float] | None, metrics: Mapping[str, float]
    ) -> Episode:
        """The episode, with what the environment returned. Raises Refused if the policy took no turn."""
        if not self._recorder.turns and self._overflowed:
            reason = f"its prompt did not fit environment.maxEpisodeTokens ({self._limits.tokens})"
            return Episode(self.task.id, self.sample, (), "truncated", reason=reason)
        if not self._recorder.turns:
            raise Refused("ended before the policy took a turn")
        if turn_rewards is not None and len(turn_rewards) > self._recorder.turns:
            raise Refused(f"returned {len(turn_rewards)} rewards of turns, and there were {self._recorder.turns}")
        parts = self._recorder.trajectories()
        cut = self._cut or parts[-1].truncated
        status: EpisodeStatus = "truncated" if cut else "finished"
        episode = Episode(
            self.task.id,
            self.sample,
            parts,
            status,
            float("nan") if reward is None else reward,
            turn_rewards=None if turn_rewards is None else self._recorder.in_order(list(turn_rewards)),
            counts={"turns": float(self._recorder.turns), "splits": float(self._recorder.splits), **metrics},
            order=self._recorder.order(),
        )
        limits = self._limits
        if not self._policy.trains:
            return episode
        if self._overflowed:
            return _filtered(episode, limits.on_overflow, f"did not fit environment.maxEpisodeTokens ({limits.tokens})")
        return _filtered(episode, limits.on_truncated, "ended at a limit of turns or tokens") if cut else episode

    async def chat(
        self, messages: Sequence[Any], tools: Any, limits: TurnLimits = TurnLimits(), *, whole_calls: bool = False
    ) -> Chatted:  # fmt: skip
        """The policy's next message. whole_calls: see Conversation.answered. Raises as call."""
        if not messages or not all(isinstance(each, dict) and isinstance(each.get("role"), str) for each in messages):
            raise Refused("messages are a list of {role, content}, at least one")
        try:
            token_ids, prompt = self._conversation.prompt(messages, tools)
            completion = await self._turn(token_ids, limits)
            message = self._conversation.answered(
                messages, tools, prompt, token_ids, completion.token_ids, stop=limits.stop, whole_calls=whole_calls
            )
        except BadRow as error:
            raise Refused(str(error)) from error
        return Chatted(message, len(token_ids), completion)

    async def complete(self, prompt: str | Sequence[int], limits: TurnLimits = TurnLimits()) -> Completed:
        """The policy's continuation of a text or of tokens. Raises as call."""
        token_ids = self._texts.prompt(prompt) if isinstance(prompt, str) else self._given(prompt)
        if not len(token_ids):
            raise Refused("the prompt is empty")
        completion = await self._turn(token_ids, limits)
        if isinstance(prompt, str):
            self._texts.answered(prompt, token_ids, completion.token_ids)
        text = before_stop(self._tokenized.decode(completion.token_ids.tolist()), limits.stop)
        return Completed(text, len(token_ids), completion)

    async def _generate(self, token_ids: Sequence[int]) -> list[Any]:
        completion = await self._turn(self._given(token_ids))
        ids = completion.token_ids.tolist()
        return [ids, self._tokenized.decode(ids), completion.finish_reason]

    def _given(self, token_ids: Sequence[int]) -> Ids:
        """A prompt of the environment's own tokens. An engine could not tell it from a fault of the engine."""
        if wrong := [token for token in token_ids if not 0 <= token < self._tokenized.rows]:
            raise Refused(f"the model has the tokens 0 to {self._tokenized.rows - 1}, and no token {wrong[0]}")
        return np.array(token_ids, np.int32)

    async def _turn(self, token_ids: Ids, limits: TurnLimits = TurnLimits()) -> Completion:
        """Sample a turn and record it. Raises Over at a limit."""
        room = self._limits.tokens - len(token_ids)
        asked = limits.max_tokens or self._policy.max_tokens
        most = min(self._policy.max_tokens, asked)
        if self._recorder.begun == self._limits.turns:
            self._cut = True
            raise Over(f"environment.maxTurns is {self._limits.turns}")
        if room < 1:
            self._cut = self._overflowed = True
            raise Over(
                f"the context has {len(token_ids)} tokens, and environment.maxEpisodeTokens {self._limits.tokens}"
            )
        number = self._recorder.begin()
        try:
            completion = await self._policy.generate(token_ids, min(most, room), limits.stop)
        except asyncio.CancelledError:  # who asked for it gave up
            self._recorder.give_up(number)
            raise
        if room < most and completion.finish_reason == "length":
            self._cut = self._overflowed = True
        # Where the agent wanted it to end, it is not cut off.
        as_asked = completion.finish_reason == "length" and asked < min(self._policy.max_tokens, room)
        kept = replace(completion, finish_reason="stop") if as_asked else completion
        self._recorder.add(number, token_ids, kept, self._policy.temperature)
        return completion


def _filtered(episode: Episode, how: Filter, reason: str) -> Episode:
    """An episode that a limit ended: as it is, without tokens in the loss, or left out."""
    if how == "drop":
        return replace(episode, trajectories=(), reward=float("nan"), turn_rewards=None, reason=reason)
    if how == "mask":
        masked = (replace(part, in_loss=np.zeros_like(part.in_loss)) for part in episode.trajectories)
        return replace(episode, trajectories=tuple(masked))
    return episode
