"""The processes of the ranks, and the driver's client of all: they hold one policy together, so a call goes to all.

    driver ──> rank-0 ... rank-N     one GPU each, or a share of the CPU cores; each does one call after the other

Either all ranks of a former driver are taken over or none.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import structlog

from rljob_api import ResolvedSpec
from rljob_trainer.checkpoint.files import FileEntry
from rljob_trainer.compute.compiled import keep_compiled
from rljob_trainer.engines.engine_host import EngineProcess
from rljob_trainer.errors import InfrastructureError, WorkerLost
from rljob_trainer.losses.totals import BatchTotals
from rljob_trainer.progress.metrics import Stage
from rljob_trainer.rank.calls import RankCalls
from rljob_trainer.rank.parallel import ParallelDims, sync_groups
from rljob_trainer.rank.plan import RankPlan
from rljob_trainer.rank.results import CriticOrder, Prepared, ProbeScores, RankInfo, Sent, Updated
from rljob_trainer.rank.settings import RankSettings
from rljob_trainer.rank.training_state import RankStates, TrainingState
from rljob_trainer.rollouts.calls import GroupRef
from rljob_trainer.types import Floats, Ids, Trajectory
from rljob_trainer.workers.context import START_SECONDS, SYNC_SECONDS, UPDATE_SECONDS, WorkerContext
from rljob_trainer.workers.host import Host
from rljob_trainer.workers.placement import options
from rljob_trainer.workers.trace import traced
from rljob_trainer.workers.waiting import cause_among, wait_for_all, wait_together
from rljob_trainer.workers.worker import Answer, Pending, Worker, arriving

if TYPE_CHECKING:
    from rljob_trainer.rank.rank import Rank

log = structlog.get_logger()

P = ParamSpec("P")
R = TypeVar("R")

APART_SECONDS = 60.0
"""How much longer than another a rank may take to finish what a former driver asked for, if it asked all of them."""


_TOGETHER = frozenset(
    method.__name__
    for method in (
        RankCalls.prepare,
        RankCalls.values,
        RankCalls.update,
        RankCalls.supervised_step,
        RankCalls.score_probes,
    )
)
"""Calls in which ranks meet at every layer. Elsewhere one may read a large model from a slow disk, say."""


class RankHost(Host):
    """The Ray worker of a rank. Light: the driver imports it."""

    worker: "Rank"

    def create(self, spec: ResolvedSpec, settings: RankSettings, compiled: str | None) -> "Rank":
        keep_compiled(compiled)
        with traced("start/imports"):
            from rljob_trainer.rank.rank import Rank

        return Rank(spec, settings)

    def detail(self) -> str:
        """How many collectives it has entered: a rank that hangs is behind those that wait for it."""
        return f", {self.worker.collectives()} collectives"

    def pace(self) -> int | None:
        """Collectives, during a step."""
        doing = {method for method, _ in list(self._doing.values())}
        return self.worker.collectives() if doing & _TOGETHER else None


class RankClient:
    """All ranks. What a call does is in RankCalls; here is who is asked for what, and how long it may take.

    Calls that return Pending do not wait. Every wait raises RankLost, or the loss of another worker that is behind a
    failure; else what the ranks raised.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        settings = [_rank_settings(context, rank) for rank in range(context.spec.ranks)]
        self._signatures = {f"rank-{each.rank}": context.signature(each) for each in settings}
        self._settings = dict(zip(self._signatures, settings, strict=True))
        self.workers: list[Worker[RankCalls]] = []

    def __len__(self) -> int:
        return len(self._settings)

    # ------------------------------------------------------------------ processes

    def take_over(self) -> RankStates | None:
        """What the living ranks hold, if all of them hold the same; else they are ended."""
        adopted = self._context.roster.adopt({name: [each] for name, each in self._signatures.items()})
        self.workers = list(adopted.values())
        if len(adopted) == len(self):
            self.workers = [adopted[name] for name in self._signatures]
            held = self._states()
            if held is not None:
                return held
        self.end()
        return None

    def _states(self) -> RankStates | None:
        """What all ranks hold; each answers after what it does now."""
        heartbeats = self._context.heartbeats
        asked = [worker.call(RankCalls.state) for worker in self.workers]
        what = "the trainer's ranks to finish what their former driver asked for"
        try:
            states = wait_together(
                asked, UPDATE_SECONDS, APART_SECONDS, what, lambda: heartbeats.check("rank"), heartbeats.doing
            )
        except InfrastructureError as error:
            log.warning("ranks_not_taken_over", reason=str(error))
            return None
        held = [state.training_state for state in states if state is not None]
        names = {(each.step, each.digest, each.stage) for each in held}
        if len(held) < len(states) or len(names) > 1:
            log.warning("ranks_not_taken_over", reason=f"they hold different states: {names}")
            return None
        return RankStates(held[0], [state.updated for state in states if state and state.updated])

    def start(self) -> None:
        """Start all ranks, without waiting for them: they import while data is read."""
        gpus, placement = int(self._context.device_type == "cuda"), self._context.placement
        self.workers = [
            self._context.roster.start(
                name, self._signatures[name], RankHost,
                {"num_gpus": gpus, **options(placement.of_rank(settings.rank))}, self._context.spec, settings,
                self._context.compiled,
            )
            for name, settings in self._settings.items()
        ]  # fmt: skip

    def connect(self) -> list[RankInfo]:
        """Build the process group over all ranks."""
        opened = self.workers[0].call(RankCalls.open_store)
        (rendezvous,) = self._wait([opened], START_SECONDS, "rank 0 of the trainer to start", "rank")
        return self._all(RankCalls.connect, START_SECONDS, rendezvous).result()

    def end(self) -> None:
        for worker in self.workers:
            self._context.roster.end(worker)
        self.workers = []

    # ------------------------------------------------------------------ start and checkpoints

    def visible_gpus(self) -> list[str | None]:
        """The GPU of each rank; None on a CPU."""
        return self._all(RankCalls.visible_gpu, START_SECONDS).result()

    def give_back_memory(self) -> None:
        self._all(RankCalls.give_back_memory, START_SECONDS).result()

    def load(self, folder: str, critic: str | None = None, teacher: str | None = None) -> int:
        """Returns how many parameters a rank counts."""
        return self._all(RankCalls.load, START_SECONDS, folder, critic, teacher).result()[0]

    def begin_stage(self, stage: Stage) -> None:
        self._all(RankCalls.begin_stage, START_SECONDS, stage).result()

    def restore(self, directory: str) -> None:
        self._all(RankCalls.restore, UPDATE_SECONDS, directory).result()

    def hold(self, training_state: TrainingState) -> None:
        self._all(RankCalls.hold, START_SECONDS, training_state).result()

    def exchange_average(self) -> None:
        self._all(RankCalls.exchange_average, UPDATE_SECONDS).result()

    def begin_save(self, directory: str) -> None:
        self._all(RankCalls.begin_save, UPDATE_SECONDS, directory).result()

    def finish_save(self) -> list[dict[str, FileEntry]]:
        """Beside what the ranks do, and from any thread."""
        asked = [worker.call_beside("background", RankCalls.finish_save) for worker in self.workers]
        return self._pending(asked, UPDATE_SECONDS, "finish_save").result()

    # ------------------------------------------------------------------ steps

    def supervised_step(
        self, plans: Sequence[RankPlan], totals: Sequence[BatchTotals], rows: Sequence[Trajectory],
        learning_rate: float, training_state: TrainingState, norm_bound: float,
    ) -> list[Updated]:  # fmt: skip
        """plans: one for each rank."""
        asked = [
            worker.call(RankCalls.supervised_step, plan, totals, rows, learning_rate, training_state, norm_bound)
            for worker, plan in zip(self.workers, plans, strict=True)
        ]
        return self._pending(asked, UPDATE_SECONDS, "supervised_step").result()

    def prepare(
        self, plans: Sequence[RankPlan], totals: Sequence[BatchTotals], groups: Sequence[GroupRef]
    ) -> Pending[Prepared]:
        """plans: one for each rank. groups: of the whole step, in the order in which plans count trajectories."""
        bundles = list(dict.fromkeys(group.bundle for group in groups))
        places = [(bundles.index(group.bundle), group.index) for group in groups]
        asked = [
            worker.call(RankCalls.prepare, plan, totals, places, *bundles)
            for worker, plan in zip(self.workers, plans, strict=True)
        ]
        return self._pending(asked, UPDATE_SECONDS, "prepare")

    def values(self) -> Pending[list[Floats]]:
        """Behind `prepare`: the critic's values, of each rank."""
        return self._all(RankCalls.values, UPDATE_SECONDS)

    def update(
        self, advantages: Sequence[Sequence[Floats]], learning_rate: float, kl_coefficient: float,
        training_state: TrainingState, norm_bound: float, critic: Sequence[CriticOrder] | None = None,
    ) -> Pending[Updated]:  # fmt: skip
        """advantages, critic: those of each rank."""
        orders: Sequence[CriticOrder | None] = critic or [None] * len(self)
        asked = [
            worker.call(RankCalls.update, own, learning_rate, kl_coefficient, training_state, norm_bound, order)
            for worker, own, order in zip(self.workers, advantages, orders, strict=True)
        ]
        return self._pending(asked, UPDATE_SECONDS, "update")

    # ------------------------------------------------------------------ weights

    def send_weights(
        self, engines: Sequence[Sequence[Worker[EngineProcess]]], version: int, prompts: Sequence[Ids],
        max_tokens: int, *, whole: bool, after: Pending[Updated] | None = None,
    ) -> Pending[Sent]:  # fmt: skip
        """engines: those that each rank feeds. whole: as in RankCalls.send_weights.

        after: the update that makes `version`, if it is under way.
        """
        behind = after.answers if after is not None else ()
        asked = [
            worker.call(
                RankCalls.send_weights, own, version, prompts, max_tokens, SYNC_SECONDS, whole,
                *map(arriving, behind),
            )
            for worker, own in zip(self.workers, engines, strict=True)
        ]  # fmt: skip
        return self._pending(asked, START_SECONDS + SYNC_SECONDS, "send_weights", "engine")

    def score_probes(self, prompts: Sequence[Ids], sent: Pending[Sent]) -> Pending[ProbeScores]:
        """Behind `sent`: the scores of each engine's answers to the probe, which every rank computes."""
        return self._all(RankCalls.score_probes, SYNC_SECONDS, prompts, *map(arriving, sent.answers))

    # ------------------------------------------------------------------ waiting

    def _all(
        self, method: Callable[Concatenate[RankCalls, P], R], seconds: float, *args: P.args, **kwargs: P.kwargs
    ) -> Pending[R]:
        """Ask every rank the same. seconds: as in `_pending`."""
        return self._pending(
            [worker.call(method, *args, **kwargs) for worker in self.workers], seconds, method.__name__
        )

    def _pending(self, asked: list[Answer[R]], seconds: float, call: str, *others: str) -> Pending[R]:
        """seconds: how long its result is waited for. others: kinds of workers without which the ranks cannot."""
        return Pending(asked, lambda: self._wait(asked, seconds, f"the trainer's ranks: {call}", "rank", *others))

    def _wait(self, asked: list[Answer[R]], seconds: float, what: str, *matter: str) -> list[R]:
        """matter: kinds of workers without which it is no use to wait."""
        heartbeats = self._context.heartbeats
        try:
            return wait_for_all(asked, seconds, what, lambda: heartbeats.check(*matter), heartbeats.doing)
        except WorkerLost:
            raise
        except InfrastructureError as error:
            raise cause_among(asked) or heartbeats.diagnose() or error from error


def _rank_settings(context: WorkerContext, rank: int) -> RankSettings:
    return RankSettings(
        rank=rank,
        parallel=ParallelDims.over(context.spec.ranks, replicate=context.spec.actor.fsdp.replicas),
        device_type="cuda" if context.device_type == "cuda" else "cpu",
        sync_groups=sync_groups(context.spec, context.device_type),
        threads=context.threads,
        collective_seconds=UPDATE_SECONDS,
    )
