"""The Ray worker of rewards. A module of its own, so that its process imports neither torch nor the trainer."""

from pathlib import Path

from rljob_api.v1alpha1 import Rewards
from rljob_trainer.rewards.worker import RewardWorker
from rljob_trainer.types import Group, GroupSummary


class RewardHost:
    """Scores groups; loads the reward functions in `start`, so that what is wrong with them reaches the caller."""

    def __init__(self, rewards: Rewards, model_dir: str, base_dir: str, log: str) -> None:
        self._arguments = (rewards, Path(model_dir), Path(base_dir), Path(log))

    def start(self) -> None:
        self._worker = RewardWorker(*self._arguments)

    def score(self, group: Group) -> GroupSummary:
        return self._worker.score(group)
