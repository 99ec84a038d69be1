"""Decodes a group's samples and scores them. Imports no torch, so that the process that hosts it stays small."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from rljob_api.v1alpha1 import Rewards
from rljob_trainer.journal.summary import summarise
from rljob_trainer.rewards.pool import Response, RewardPool
from rljob_trainer.types import Group, GroupSummary, Sample

Decode = Callable[[Sequence[int]], str]


class RewardWorker:
    """Scores groups; score() is safe from many threads at once.

    tokenizer_dir: what the tokenizer's save_pretrained wrote.
    base_dir: where relative paths of reward files start.

    Raises:
        RewardError: a function cannot be loaded.
        InfrastructureError: no process can be started.
    """

    def __init__(self, rewards: Rewards, tokenizer_dir: Path, base_dir: Path, log: Path | None = None) -> None:
        self._decode = _decoder(tokenizer_dir)
        self._pool = RewardPool(rewards, base_dir, log)

    def score(self, groups: Sequence[Group]) -> Iterator[GroupSummary]:
        """Yield the rewards and lengths of each group, in their order; all are scored side by side.

        Raises:
            RewardError, InfrastructureError: as RewardPool.score.
        """
        scores = [
            self._pool.submit(group.prompt, [self._response(sample) for sample in group.samples]) for group in groups
        ]
        for group, score in zip(groups, scores, strict=True):
            yield summarise(group, score.result())

    def close(self) -> None:
        """End the reward processes."""
        self._pool.close()

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
