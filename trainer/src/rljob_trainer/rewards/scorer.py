"""What the Ray worker of rewards does. It imports neither torch nor the trainer, so that its process stays small."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rljob_api.v1alpha1 import Rewards
from rljob_trainer.errors import InfrastructureError, RLJobError
from rljob_trainer.journal import GroupKey, JournalWriter
from rljob_trainer.old_types import Group, GroupSummary
from rljob_trainer.rewards.reward_worker import RewardWorker
from rljob_trainer.volume import Volume


class GroupScorer:
    """Scores groups and journals them; safe from many threads at once, and for drivers one after the other.

    It loads the reward functions in `start`, so that what is wrong with them reaches the caller.
    model_dir: with the tokenizer. base_dir: where relative paths of reward files start. urls: of the servers of reward
    models, by name. log: what functions print. volume: the run's, for the journal.
    """

    def __init__(
        self, rewards: Rewards, model_dir: str, base_dir: str, urls: Mapping[str, str], log: str, volume: str
    ) -> None:
        self._arguments = (rewards, Path(model_dir), Path(base_dir), urls, Path(log))
        self._volume = Volume(Path(volume))
        self._worker: RewardWorker | None = None
        self._running: set[object] = set()
        self._changed = threading.Condition()

    def start(self) -> None:
        """Load the reward functions, unless a former driver had them loaded. Raises as RewardWorker.

        A journal that failed for that driver is opened anew: the volume may answer again.
        """
        if self._worker is None:
            self._worker = RewardWorker(*self._arguments)
            self._journal = JournalWriter(self._volume)
        elif self._journal.failed:
            failed, self._journal = self._journal, JournalWriter(self._volume)
            with suppress(RLJobError):
                failed.close()

    def score(
        self, groups: Sequence[Group], key: GroupKey | None = None, only: Sequence[int] | None = None
    ) -> list[GroupSummary]:
        """Score the groups and, where they have a key, journal each before anyone is told.

        key: what the groups are made for; None for validation, which is not journaled.
        only: indices of those that are wanted; all by default.

        Raises:
            RewardError: as rewards.onError says.
            StorageFullError, InfrastructureError: of the journal, or no reward process can be started.
        """
        if self._worker is None:
            raise InfrastructureError("the reward functions are not loaded")
        wanted = groups if only is None else [groups[index] for index in only]
        summaries = []
        with self._counted():
            for group, summary in zip(wanted, self._worker.score(wanted), strict=True):
                if key is not None:
                    self._journal.append(key, group, summary.score)
                summaries.append(summary)
        return summaries

    def settle(self) -> None:
        """Wait until everything that is being scored now is scored, and journaled where it has a key."""
        with self._changed:
            now = set(self._running)
            self._changed.wait_for(lambda: not now & self._running)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        call = object()
        with self._changed:
            self._running.add(call)
        try:
            yield
        finally:
            with self._changed:
                self._running.remove(call)
                self._changed.notify_all()

    def close(self) -> None:
        """End the reward processes and make the journal durable."""
        if self._worker is not None:
            self._worker.close()
            self._journal.close()
