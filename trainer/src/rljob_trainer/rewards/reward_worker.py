"""Decodes a group's samples and has them scored. Imports no torch, for it needs none."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from tokenizers import Tokenizer

from rljob_api.v1alpha1 import Rewards
from rljob_trainer.journal.summary import summarise
from rljob_trainer.old_types import Group, GroupScore, GroupSummary, Sample
from rljob_trainer.rewards.models.group import RewardModels
from rljob_trainer.rewards.policy import Response, summed
from rljob_trainer.rewards.pool import RewardPool

Decode = Callable[[Sequence[int]], str]


class RewardWorker:
    """Scores groups; score() is safe from many threads at once.

    tokenizer_dir: what the tokenizer's save_pretrained wrote.
    base_dir: where relative paths of reward files start. urls: of reward models' servers, by name.

    Raises:
        RewardError: a function cannot be loaded, or a scorePattern is none.
        JobError: nobody said where a reward model's server is.
        InfrastructureError: no process can be started.
    """

    def __init__(
        self, rewards: Rewards, tokenizer_dir: Path, base_dir: Path, urls: Mapping[str, str], log: Path | None = None
    ) -> None:
        self._decode = _decoder(tokenizer_dir)
        self._scorers: list[RewardPool | RewardModels] = []
        if rewards.models:
            self._scorers.append(RewardModels(rewards, urls))
        if rewards.functions:
            self._scorers.append(RewardPool(rewards, base_dir, log))

    def score(self, groups: Sequence[Group]) -> Iterator[GroupSummary]:
        """Yield the rewards and lengths of each group, in their order; all are scored side by side.

        Raises:
            RewardError, InfrastructureError: as RewardPool.submit and RewardModels.submit.
        """
        parts = [self._submit(group) for group in groups]
        for group, scores in zip(groups, parts, strict=True):
            yield summarise(group, summed([score.result() for score in scores]))

    def close(self) -> None:
        """End the reward processes, and stop asking reward models."""
        for scorer in self._scorers:
            scorer.close()

    def _submit(self, group: Group) -> "list[Future[GroupScore]]":
        responses = [self._response(sample) for sample in group.samples]
        return [scorer.submit(group.prompt, responses) for scorer in self._scorers]

    def _response(self, sample: Sample) -> Response:
        text = self._decode(sample.token_ids.tolist())
        return Response(text, tokens=len(sample.token_ids), truncated=sample.finish_reason == "length")


def _decoder(folder: Path) -> Decode:
    fast = folder / "tokenizer.json"
    if fast.exists():
        tokenizer = Tokenizer.from_file(str(fast))
        return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True))

    from transformers import AutoTokenizer  # it imports torch; only tokenizers without a fast form need it

    slow = AutoTokenizer.from_pretrained(folder)
    return lambda ids: str(slow.decode(ids, skip_special_tokens=True))
