"""The Ray worker of rewards."""

from collections.abc import Mapping
from pathlib import Path

from rljob_trainer.rewards.reward_host import RewardHost
from rljob_trainer.rewards.scorer import GroupScorer
from rljob_trainer.volume import Volume
from rljob_trainer.workers.context import START_SECONDS, WorkerContext
from rljob_trainer.workers.placement import options
from rljob_trainer.workers.waiting import wait_for
from rljob_trainer.workers.worker import Worker

REWARDS = "rewards"

MODEL_CALLS = 32
"""Bundles of groups that may wait for reward models at once."""


class Scorer:
    """The Ray worker that scores groups, as many at a time as it has processes; more where it waits for models."""

    def __init__(
        self, context: WorkerContext, volume: Volume, model_dir: Path, base_dir: str, reward_models: Mapping[str, str]
    ) -> None:
        self._context = context
        urls, log_file = dict(reward_models), volume.logs / "rewards.log"
        self._arguments = (context.spec.rewards, str(model_dir), base_dir, urls, str(log_file), str(volume.root))
        self._signature = context.signature(*self._arguments)
        adopted = context.roster.adopt({REWARDS: [self._signature]})
        self.worker: Worker[GroupScorer] = adopted.get(REWARDS) or self._host()

    def _host(self) -> Worker[GroupScorer]:
        rewards = self._context.spec.rewards
        waiting = MODEL_CALLS if rewards.models else 0
        how = {"max_concurrency": rewards.processes + waiting + 1, **options(self._context.placement.of_rank(0))}
        return self._context.roster.start(REWARDS, self._signature, RewardHost, how, *self._arguments)

    def start(self) -> None:
        """Load the reward functions where they are not, without waiting; needs the tokenizer in the model's folder."""
        self._started = self.worker.call(GroupScorer.start)

    def ready(self) -> None:
        """Raises RewardError for functions that cannot be loaded."""
        wait_for(self._started, START_SECONDS, "the reward functions to load", self._context.heartbeats.check)

    def replace(self) -> None:
        self._context.roster.end(self.worker)
        self.worker = self._host()
        self.start()
        self.ready()
