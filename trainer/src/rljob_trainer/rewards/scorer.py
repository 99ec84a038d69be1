"""Scores the episodes of a group with all rewards of a job. Imports no torch, to save memory."""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from rljob_api.v1alpha1 import Environment, Rewards
from rljob_trainer.engines.ends import as_ids, end_ids, eos_token
from rljob_trainer.errors import RewardError
from rljob_trainer.rewards.models.group import RewardModels
from rljob_trainer.rewards.policy import Response, summed
from rljob_trainer.rewards.pool import RewardPool
from rljob_trainer.rewards.scores import GroupScore
from rljob_trainer.rewards.spans import credited
from rljob_trainer.types import Episode, Group, Task

Decode = Callable[[Sequence[int]], str]

ENVIRONMENT = "environment"
"""Name of the component that an environment returned."""


class Scorer:
    """The reward functions and reward models of a job.

    model_dir: with the tokenizer, as its save_pretrained wrote it, and the configuration that names end tokens.
    trust_remote_code: model.trustRemoteCode.
    base_dir: base of relative paths of reward files. urls: servers of the reward models, by name.
    environment: spec.environment; with one, functions also get the text of each turn.

    Raises:
        RewardError: a function cannot be loaded, or a scorePattern is invalid.
        JobError: a reward model has no server.
        InfrastructureError: no process can be started.
    """

    def __init__(
        self, rewards: Rewards, model_dir: Path, base_dir: Path, urls: Mapping[str, str], log: Path | None = None,
        *, trust_remote_code: bool = False, environment: Environment | None = None,
    ) -> None:  # fmt: skip
        self._plays = environment is not None
        self._whole_groups = environment is not None and environment.on_error == "drop_group"
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
            RewardError: nothing gives an episode a reward.
        """
        if self._plays and (error := self._unusable(episodes)) is not None:
            return Group(task, tuple(episodes), error)
        played = [episode for episode in episodes if episode.trajectories]
        responses = [self._response(episode) for episode in played]
        scores = [asyncio.wrap_future(part.submit(task, responses)) for part in self._parts]
        if scores:
            score = summed(await asyncio.gather(*scores))
        else:
            score = _by_environment(task, played) if self._plays else _unrewarded(task, played)
        return self._credited(scored(task, episodes, score), score)

    def _credited(self, group: Group, score: GroupScore) -> Group:
        """The group with the rewards inside its responses, at their tokens."""
        if not score.spans or group.error is not None:
            return group
        spans = iter(score.spans)

        def rewarded(episode: Episode) -> Episode:
            if not episode.trajectories:
                return episode
            return replace(episode, token_rewards=credited(episode, next(spans), self._decode, self._ends))

        return replace(group, episodes=tuple(map(rewarded, group.episodes)))

    def _unusable(self, episodes: Sequence[Episode]) -> str | None:
        """Why the group of these episodes cannot be used, whatever their rewards are."""
        out = [episode for episode in episodes if not episode.trajectories]
        failed = [episode for episode in out if episode.status != "truncated"]  # others: onOverflow, onTruncated
        trained = any(part.loss_tokens for episode in episodes for part in episode.trajectories)
        if out and ((failed and self._whole_groups) or not trained):
            first, how = (failed or out)[0], "failed" if failed else "are left out"
            return (
                f"{len(failed or out)} of {len(episodes)} episodes {how}, such as {first.task_id}/{first.sample}:"
                f" {first.reason}"
            )
        return None if trained else "no episode has tokens to train on"

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
        answers = self._answers(episode) if self._plays else None
        text = self._decode(last.response_ids(self._ends))
        return Response(text, tokens=tokens, truncated=last.truncated, answers=answers)

    def _answers(self, episode: Episode) -> tuple[str, ...]:
        """The text of each turn, of all trajectories, as they were taken."""
        texts = [
            self._decode(replace(part, turns=(turn,)).response_ids(self._ends))
            for part in episode.trajectories
            for turn in part.turns
        ]
        return tuple(texts[place] for place in np.argsort(episode.order or range(len(texts))))


def by_environment(rewards: Rewards) -> Iterable[list[int]]:
    """Indices of the functions that see the same variables: they share processes."""
    places: dict[frozenset[str], list[int]] = {}
    for place, function in enumerate(rewards.functions):
        places.setdefault(frozenset(function.env), []).append(place)
    return places.values()


def scored(task: Task, episodes: Sequence[Episode], score: GroupScore) -> Group:
    """The group of `episodes` with the rewards of `score`, [episodes that have trajectories], and their own."""
    indices = iter(range(len(score.rewards)))

    def rewarded(episode: Episode) -> Episode:
        if not episode.trajectories:
            return episode
        index, own = next(indices), episode.reward
        components = {name: float(values[index]) for name, values in score.components.items()}
        if math.isnan(own):
            return replace(episode, reward=float(score.rewards[index]), components=components)
        return replace(episode, reward=float(score.rewards[index]) + own, components=components | {ENVIRONMENT: own})

    return Group(task, tuple(map(rewarded, episodes)), score.error)


def _unrewarded(task: Task, played: Sequence[Episode]) -> GroupScore:
    """0 for each: distillation trains without rewards."""
    return GroupScore(task.id, np.zeros(len(played), np.float32))


def _by_environment(task: Task, played: Sequence[Episode]) -> GroupScore:
    """The score of rewards that there are none of: an episode that was cut off before it had one has 0.

    Raises RewardError for another episode without a reward of its own.
    """
    if any(math.isnan(episode.reward) and episode.status != "truncated" for episode in played):
        raise RewardError(
            f"the environment returned no reward for prompt {task.id}, and no function or model scores it: return one,"
            " or set rewards.functions",
            field="spec.environment",
        )
    return GroupScore(task.id, np.zeros(len(played), np.float32))


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
