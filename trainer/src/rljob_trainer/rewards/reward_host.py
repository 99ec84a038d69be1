"""The Ray worker of rewards."""

from collections.abc import Mapping

from rljob_api.v1alpha1 import Rewards
from rljob_trainer.rewards.scorer import GroupScorer
from rljob_trainer.workers.host import Host


class RewardHost(Host):
    """Scores and journals groups, also for an engine whose driver is gone: that a group is finished is a fact."""

    harmless = frozenset({"score"})

    def create(
        self, rewards: Rewards, model_dir: str, base_dir: str, urls: Mapping[str, str], log: str, volume: str
    ) -> GroupScorer:
        return GroupScorer(rewards, model_dir, base_dir, urls, log, volume)
