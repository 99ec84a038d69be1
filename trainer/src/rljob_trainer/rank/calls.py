"""Everything that a driver asks of a rank. Light: the driver imports it.

    open_store (rank 0) -> connect -> load -> begin_stage -> [supervised_step ...]
                                           -> begin_stage -> [prepare -> update -> send_weights -> score_probes ...]

All ranks are asked alike, and most calls are collective: client.py asks all of them together. `prepare` and `update`
are two calls because the driver computes advantages in between, from metadata alone.
"""

from collections.abc import Sequence
from typing import Protocol

from rljob_trainer.checkpoint.files import FileEntry
from rljob_trainer.engines.engine_host import EngineProcess
from rljob_trainer.losses.totals import BatchTotals
from rljob_trainer.progress.metrics import Stage
from rljob_trainer.rank.plan import RankPlan
from rljob_trainer.rank.results import (
    LARGEST_NORM,
    CriticOrder,
    Prepared,
    ProbeScores,
    RankInfo,
    Rendezvous,
    Sent,
    Updated,
)
from rljob_trainer.rank.training_state import RankState, TrainingState
from rljob_trainer.types import Floats, Group, Ids, Trajectory
from rljob_trainer.workers.worker import Worker


class RankCalls(Protocol):
    """A rank of the trainer."""

    # ------------------------------------------------------------------ start

    def open_store(self, host: str | None = None) -> Rendezvous:
        """Rank 0: open the store that all ranks meet at. host: of this rank, as others reach it; by default Ray's."""

    def connect(self, rendezvous: Rendezvous) -> RankInfo:
        """Join the process group."""

    def visible_gpu(self) -> str | None:
        """The GPU that this rank owns, as CUDA_VISIBLE_DEVICES names it."""

    def give_back_memory(self) -> None:
        """Free what torch's allocator keeps of the GPU, before an engine starts: it counts what is free.

        `send_weights` does so too, before an engine wakes.
        """

    def load(self, folder: str, critic: str | None = None, teacher: str | None = None) -> int:
        """Build the policy with its first weights. Returns how many parameters it has.

        critic, teacher: folders of the critic's own model and of the teacher, for `begin_stage`.

        Raises DataError or JobError for a model that cannot be trained.
        """

    def begin_stage(self, stage: Stage) -> None:
        """Make a fresh optimizer; for RL also critic, teacher and reference, which is the policy as it is now."""

    # ------------------------------------------------------------------ what it holds, for the next driver

    def hold(self, training_state: TrainingState) -> None:
        """Remember what the weights are, after they were loaded or restored or a stage began."""

    def state(self) -> RankState | None:
        """What the rank holds; None in the middle of a change, or after one that failed."""

    # ------------------------------------------------------------------ steps

    def supervised_step(
        self, plan: RankPlan, totals: Sequence[BatchTotals], rows: Sequence[Trajectory], learning_rate: float,
        training_state: TrainingState, norm_bound: float = LARGEST_NORM,
    ) -> Updated:  # fmt: skip
        """Train on this rank's share of the rows, once.

        training_state: what the weights are afterwards. norm_bound: as in `update`.
        """

    def prepare(
        self, plan: RankPlan, totals: Sequence[BatchTotals], places: Sequence[tuple[int, int]],
        *bundles: Sequence[Group],
    ) -> Prepared:  # fmt: skip
        """Take this rank's trajectories, score them with whatever the algorithm compares against, and decide the mask.

        places: (bundle, index in it) of each group of the whole step, in their order.
        bundles: one argument each, so that Ray hands over groups if the caller has references.
        """

    def values(self) -> list[Floats]:
        """The critic's values [R] of each prepared trajectory, in the order of the rank's plan.

        Raises InfrastructureError if nothing is prepared.
        """

    def update(
        self, advantages: Sequence[Floats], learning_rate: float, kl_coefficient: float, training_state: TrainingState,
        norm_bound: float = LARGEST_NORM, critic: CriticOrder | None = None,
    ) -> Updated:  # fmt: skip
        """Train on the prepared shard, once.

        advantages: [R] for each trajectory in the order of the rank's plan.
        training_state: what the weights are afterwards.
        norm_bound: no step is made of a gradient with a larger norm, or of one that is not finite.
        critic: what the critic learns, if there is one.
        Raises InfrastructureError if nothing is prepared: Ray leaves out a `prepare` whose groups are lost, and calls
        this all the same.
        """

    # ------------------------------------------------------------------ weights

    def exchange_average(self) -> None:
        """Exchange the policy's weights with their average, for a validation; once more to exchange them back."""

    def send_weights(
        self, engines: Sequence[Worker[EngineProcess]], version: int, prompts: Sequence[Ids], max_tokens: int,
        deadline: float, whole: bool, *updated: Updated,
    ) -> Sent:  # fmt: skip
        """Send the policy to the engines that this rank's sync group feeds, and have them answer the probe with it.

        engines: on the first rank of a sync group; the group's other ranks get none.
        prompts, max_tokens: of the probe. deadline: seconds for each answer of an engine.
        whole: all weights, for engines that may lack them; else the adapter alone. The same on every rank.
        updated: what all ranks returned of the update that makes the version. If one of them failed, Ray calls none.
        Raises EngineLost for an engine that fails.
        """

    def score_probes(self, prompts: Sequence[Ids], *sent: Sent) -> ProbeScores:
        """Score what each engine answered to the probe; every rank computes all of it.

        sent: of every rank, in their order.
        """

    # ------------------------------------------------------------------ checkpoints

    def begin_save(self, directory: str) -> None:
        """Start to write this rank's part of a checkpoint, in a thread of its own."""

    def finish_save(self) -> dict[str, FileEntry]:
        """Wait for it, from any thread. Returns what this rank wrote, by file name. Raises what the writing raised."""

    def restore(self, directory: str) -> None:
        """Read the shards of a checkpoint that any number of ranks wrote."""
