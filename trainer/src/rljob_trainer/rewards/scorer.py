"""Scores the episodes of a group with all rewards of a job. Imports no torch, to save memory."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from rljob_api.v1alpha1 import Rewards
from rljob_trainer.engines.ends import as_ids, end_ids, eos_token
from rljob_trainer.rewards.models.group import RewardModels
from rljob_trainer.rewards.policy import Response, summed
from rljob_trainer.rewards.pool import RewardPool
from rljob_trainer.rewards.scores import GroupScore
from rljob_trainer.types import Episode, Group, Task

Decode = Callable[[Sequence[int]], str]


class Scorer:
    """The reward functions and reward models of a job.

    model_dir: with the tokenizer, as its save_pretrained wrote it, and the configuration that names end tokens.
    trust_remote_code: model.trustRemoteCode.
    base_dir: base of relative paths of reward files. urls: servers of the reward models, by name.

    Raises:
        RewardError: a function cannot be loaded, or a scorePattern is invalid.
        JobError: a reward model has no server.
        InfrastructureError: no process can be started.
    """

    def __init__(
        self, rewards: Rewards, model_dir: Path, base_dir: Path, urls: Mapping[str, str], log: Path | None = None,
        *, trust_remote_code: bool = False,
    ) -> None:  # fmt: skip
        self._decode, self._ends = _decoder(model_dir, trust_remote_code=trust_remote_code)
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
        """The response to score: what the policy sampled in the last trajectory, except the tokens that ended turns.

        Other special tokens stay: a format reward may ask for them.
        """
        last = episode.trajectories[-1]
        tokens = sum(turn.end - turn.start for turn in last.turns)
        return Response(self._decode(last.response_ids(self._ends)), tokens=tokens, truncated=last.truncated)


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
    return Group(task, rewarded, score.error)


def _decoder(folder: Path, *, trust_remote_code: bool) -> tuple[Decode, set[int]]:
    """What decodes a response, with its special tokens, and the tokens that end one."""
    fast, ends = folder / "tokenizer.json", end_ids(folder)
    if fast.exists():
        tokenizer = Tokenizer.from_file(str(fast))
        own = tokenizer.token_to_id(eos_token(folder) or "")
        return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False)), ends | set(as_ids(own))

    from transformers import AutoTokenizer  # imports torch; needed only for tokenizers without a fast form

    slow = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
    return lambda ids: str(slow.decode(ids, **options)), ends | set(as_ids(slow.eos_token_id))
