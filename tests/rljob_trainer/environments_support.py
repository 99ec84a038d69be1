"""A policy that says what a test has it say, and tokens of a byte-level tokenizer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from rljob_api.v1alpha1 import Environment
from rljob_trainer.data.chat import ChatFormat
from rljob_trainer.data.tokenizer import CHAT_TEMPLATE
from rljob_trainer.engines.engine import Completion
from rljob_trainer.environments.conversation import Tokenized
from rljob_trainer.environments.pool import EnvironmentPool
from rljob_trainer.rollouts.episodes import Episodes
from rljob_trainer.types import Episode, Ids, Task
from tests.rljob_trainer.chat_templates import tokenizer_of

ENDS = ["<|endoftext|>", "<|im_end|>", "<|end|>", "<|eot|>", "</s>", "<|eot_id|>", "<end_of_turn>"]
OWN = CHAT_TEMPLATE


def tokenized_of(template: str = OWN, eos: str = "<|end|>", **arguments: Any) -> Tokenized:
    tokenizer = tokenizer_of(template, eos)
    tokenizer.add_special_tokens({"additional_special_tokens": ENDS[-2:]})
    return Tokenized(ChatFormat(tokenizer, arguments), set(tokenizer.convert_tokens_to_ids(ENDS)))


def ids_of(tokenized: Tokenized, text: str) -> Ids:
    return np.array(tokenized.chat.encode([text])[0], np.int32)


def task_of(tokenized: Tokenized, *messages: dict[str, Any], truth: Any = None, number: int = 0) -> Task:
    messages = messages or ({"role": "user", "content": "Play"},)
    token_ids = ids_of(tokenized, tokenized.chat.render(messages))
    return Task(f"0/{number}/0", list(messages), token_ids, truth, {"level": 3}, "game")


class Script:
    """A Policy whose turns are these texts, as an engine would give them. asked: the prompts."""

    temperature, max_tokens, trains = 1.0, 500, True

    def __init__(self, tokenized: Tokenized, *texts: str, sample: int = 0) -> None:
        self._tokenized, self._texts, self.sample = tokenized, texts, sample
        self.asked: list[Ids] = []
        self.limits: list[int | None] = []
        self._turn = 0

    async def generate(
        self, token_ids: Ids, max_tokens: int | None = None, stop: tuple[str, ...] = ()
    ) -> Completion:  # fmt: skip
        answer = ids_of(self._tokenized, self._texts[self._turn])[:max_tokens]
        self._turn += 1
        self.asked.append(token_ids)
        self.limits.append(max_tokens)
        stopped = any(each in self._tokenized.text(answer.tolist()) for each in stop)
        reason: Any = "stop" if stopped or answer[-1] in self._tokenized.ends else "length"
        log_probs = np.full(len(answer), -0.5 * self._turn, np.float32)
        return Completion("r", 0, answer, log_probs, np.full(len(answer), self._turn, np.int32), reason)

    def restart(self) -> None:
        self._turn = 0


class Played:
    """A pool in the thread of a rollout host's episodes."""

    def __init__(self, pool: EnvironmentPool, tokenized: Tokenized) -> None:
        nothing: Any = None
        self.pool, self.tokenized = pool, tokenized
        self.episodes = Episodes(nothing, nothing, nothing, 0, nothing)

    def __call__(self, *texts: str, truth: Any = None, prompt: Sequence[dict[str, Any]] = ()) -> Episode:
        return self.of(Script(self.tokenized, *texts), truth=truth, prompt=prompt)

    def of(self, policy: Script, *, truth: Any = None, prompt: Sequence[dict[str, Any]] = ()) -> Episode:
        return self.episodes.run(self.pool.rollout(task_of(self.tokenized, *prompt, truth=truth), policy))


@contextmanager
def playing(folder: Any, tokens: int = 400, template: str = OWN, **environment: Any) -> Iterator[Played]:
    """Plays in an environment with these fields."""
    tokenized = tokenized_of(template)
    pool = EnvironmentPool(
        Environment(**{"processes": 1, **environment}), tokens, lambda: tokenized, folder, folder / "environment.log"
    )
    played = Played(pool, tokenized)
    try:
        played.episodes.run(pool.start())
        yield played
    finally:
        played.episodes.run(pool.close())
        # without its orders: they have no engines
        played.episodes._loop.call_soon_threadsafe(played.episodes._loop.stop)
        played.episodes._thread.join()
