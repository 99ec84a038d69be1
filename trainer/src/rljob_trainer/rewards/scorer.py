"""Scores the episodes of a group with all rewards of a job. Imports no torch, to save memory."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from rljob_api.v1alpha1 import Rewards
from rljob_trainer.rewards.models.group import RewardModels
from rljob_trainer.rewards.policy import Response, summed
from rljob_trainer.rewards.pool import RewardPool
from rljob_trainer.rewards.scores import GroupScore
from rljob_trainer.types import Episode, Group, Task

Decode = Callable[[Sequence[int]], str]


class Scorer:
    """The reward functions and reward models of a job.

    tokenizer_dir: written by the tokenizer's save_pretrained.
    base_dir: base of relative paths of reward files. urls: servers of the reward models, by name.

    Raises:
        RewardError: a function cannot be loaded, or a scorePattern is invalid.
        JobError: a reward model has no server.
        InfrastructureError: no process can be started.
    """

    def __init__(
        self, rewards: Rewards, tokenizer_dir: Path, base_dir: Path, urls: Mapping[str, str], log: Path | None = None
    ) -> None:
        self._decode = _decoder(tokenizer_dir)
        self._parts: list[RewardPool | RewardModels] = []
        if rewards.models:
            self._parts.append(RewardModels(rewards, urls))
        for places in by_environment(rewards):
            self._parts.append(RewardPool(rewards, base_dir, log, places))

    async def score(self, task: Task, episodes: Sequence[Episode]) -> Group:
        """The group of these episodes, each with its reward; groups are scored concurrently.

        Raises:
            RewardError, InfrastructureError: as RewardPool.submit and RewardModels.submit.
        """
        responses = [self._response(episode) for episode in episodes]
        scores = [asyncio.wrap_future(part.submit(task, responses)) for part in self._parts]
        return scored(task, episodes, summed(await asyncio.gather(*scores)))

    def close(self) -> None:
        """End the reward processes and requests to reward models; blocks until they are gone."""
        for part in self._parts:
            part.close()

    def _response(self, episode: Episode) -> Response:
        """The response to score: the sampled tokens of the last trajectory."""
        last = episode.trajectories[-1]
        sampled = [last.token_ids[turn.start : turn.end] for turn in last.turns]
        ids = np.concatenate(sampled) if sampled else last.token_ids[:0]
        return Response(self._decode(ids.tolist()), tokens=len(ids), truncated=last.truncated)


def by_environment(rewards: Rewards) -> Iterable[list[int]]:
    """Indices of the functions that see the same variables: they share processes."""
    places: dict[frozenset[str], list[int]] = {}
    for place, function in enumerate(rewards.functions):
        places.setdefault(frozenset(function.env), []).append(place)
    return places.values()


def scored(task: Task, episodes: Sequence[Episode], score: GroupScore) -> Group:
    """The group of `episodes` with the rewards of `score`, [episodes]."""
    rewarded = tuple(
        replace(
            episode,
            reward=float(score.rewards[index]),
            components={name: float(values[index]) for name, values in score.components.items()},
        )
        for index, episode in enumerate(episodes)
    )
    return Group(task, rewarded, score.error, score.retries)


def _decoder(folder: Path) -> Decode:
    fast = folder / "tokenizer.json"
    if fast.exists():
        tokenizer = Tokenizer.from_file(str(fast))
        return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True))

    from transformers import AutoTokenizer  # imports torch; needed only for tokenizers without a fast form

    slow = AutoTokenizer.from_pretrained(folder)
    return lambda ids: str(slow.decode(ids, skip_special_tokens=True))
