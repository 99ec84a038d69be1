"""The training loop.

    supervised step:  examples -> update
    RL step:          rollout + rewards -> prepare -> advantages -> update -> sync + probe      (reinforced.py)
    after either:     [validate] -> one line of metrics -> [checkpoint begins, where due or asked for] -> [stop]

One thread. While it waits for engines, reward processes score what is finished; while it waits for ranks, engines
sleep; while it trains on, the last checkpoint becomes durable. Supervised steps, if a job has them, come first and
count as steps of the run.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import structlog

from rljob_api import ResolvedSpec
from rljob_trainer.attempt.claim import check_not_superseded
from rljob_trainer.checkpoint.manifest import CheckpointRef
from rljob_trainer.errors import InfrastructureError, StoppedOnRequest
from rljob_trainer.journal import truncate
from rljob_trainer.loop.bad_batches import supervised_rows
from rljob_trainer.loop.batches import batch_of_rows
from rljob_trainer.loop.checkpoints import Checkpoints
from rljob_trainer.loop.metrics import Metrics, supervised_metrics
from rljob_trainer.loop.reinforced import ReinforcedSteps
from rljob_trainer.loop.reporting import Reporting
from rljob_trainer.loop.requests import Request, Requests
from rljob_trainer.loop.stages import (
    learning_rate_of,
    stage_of,
    supervised_batch,
    supervised_stage,
    supervised_steps,
)
from rljob_trainer.loop.state import LoopState
from rljob_trainer.progress import names
from rljob_trainer.progress.metrics import Stage
from rljob_trainer.rank.client import RankClient
from rljob_trainer.rank.training_state import RankStates
from rljob_trainer.volume import Volume

log = structlog.get_logger()


@dataclass(slots=True)
class Loop:
    """One attempt's way through the steps; its owner wires it.

    stage: the one whose optimizer the ranks hold; None before the first.
    held: of ranks that were taken over with the update of the next step behind them; None elsewhere.
    saved: step of the newest checkpoint that is durable or under way.
    lost: whether a newer one was lost: the next one is due at once.
    reinforced: None for a supervised job.
    """

    spec: ResolvedSpec
    volume: Volume
    state: LoopState
    stage: Stage | None
    held: RankStates | None
    saved: int
    lost: bool
    ranks: RankClient
    reinforced: ReinforcedSteps | None
    checkpoints: Checkpoints
    reporting: Reporting
    requests: Requests
    fingerprint: str

    def run(self) -> None:
        """Train to the last step. Raises StoppedOnRequest, after a checkpoint, if a stop was requested."""
        supervised = supervised_steps(self.spec)
        self.reporting.begin(self.state.step, self.spec.total_steps, supervised, supervised_stage(self.spec))
        if self.held is None and self.saved < self.state.step and self._due(self.state.step):
            self._begin_checkpoint({})  # the one that the driver before this one died over
        start = time.monotonic()
        for step in self._steps():
            self._enter(stage_of(self.spec, step))
            tokens, metrics = self._train(step)
            seconds, start = time.monotonic() - start, time.monotonic()
            metrics |= {names.TIME_STEP: seconds, names.TOKENS_PER_SECOND: tokens / seconds}
            self.reporting.step_done(step, stage_of(self.spec, step), metrics)
            if self.reinforced is not None and self.stage == "rl":
                self.reinforced.agreement.check(step, metrics)
            self._save(step, metrics)
            if self.reinforced is not None:
                self.reinforced.rollouts.step_done()
        if self.saved < self.state.step:  # the data ended before the steps did
            self._begin_checkpoint({})
        self._finish_checkpoint()

    def _steps(self) -> Iterator[int]:
        while self.state.step < self.spec.total_steps:
            step = self.state.step + 1
            if self.state.exhausted(stage_of(self.spec, step)):
                log.info("data_exhausted", step=self.state.step, epochs=self.spec.training.epochs)
                break
            yield step
        if self.state.prompts is not None and (waiting := self.state.prompts.waiting):
            log.info("hard_prompts_left", step=self.state.step, prompts=waiting)

    def _enter(self, stage: Stage) -> None:
        if stage == self.stage:
            return
        if stage == "rl" and self.state.step == supervised_steps(self.spec):
            self.state.gradients.forget()
        with self.reporting.phase("start"):
            self.ranks.begin_stage(stage)
            self.ranks.hold(self.state.mark(stage, self.state.state_dict()))
        self.stage = stage

    # ------------------------------------------------------------------ steps

    def _train(self, step: int) -> tuple[int, Metrics]:
        held, self.held = self.held, None
        if self.reinforced is not None and self.stage == "rl":
            if held is None and step == supervised_steps(self.spec) + 1:
                self.reinforced.validate_first()
            return self.reinforced.step(step, held)
        return self._supervised_step(step, held)

    def _supervised_step(self, step: int, held: RankStates | None) -> tuple[int, Metrics]:
        assert self.state.examples is not None
        before = self.state.state_dict()
        examples = self.state.examples.next(supervised_batch(self.spec))
        rows = [row for example in examples for row in example.rows]
        batch = batch_of_rows(rows, self.spec)
        rate, stage = learning_rate_of(self.spec, step), stage_of(self.spec, step)
        self.state.advance(self.fingerprint, [example.id for example in examples])
        if held is None:
            after = self.state.mark(stage, before)
            with self.reporting.phase("update"):
                bound = self.state.gradients.bound
                updated = self.ranks.supervised_step(batch.plans, batch.totals, rows, rate, after, bound)
            held = RankStates(after, updated)
        self.state.observe(stage, held.updated)
        if skipped := held.updated[0].sums.skipped:
            self.reporting.bad_batch(supervised_rows(examples, step))
            self.state.gradients.check(step, skipped, kept=True)
        return batch.tokens, supervised_metrics(held.updated, rate) | {names.EPOCH: float(self.state.examples.epoch)}

    # ------------------------------------------------------------------ checkpoints

    def _save(self, step: int, metrics: Metrics) -> None:
        """Begin a checkpoint if one is due; if it was requested, wait until it is durable.

        It holds the metrics of its step, so it comes after them, and what it takes counts as the next step's.
        """
        self._forget_needless(self.checkpoints.poll())
        request = self.requests.pending()
        if request or self._due(step):
            self._begin_checkpoint(metrics)
        if request:
            self._finish_checkpoint()
            self._answer(request)

    def _due(self, step: int) -> bool:
        return self.lost or self.checkpoints.due(step, self.spec.total_steps)

    def _begin_checkpoint(self, metrics: Metrics) -> None:
        with self.reporting.phase("checkpoint"):
            self.checkpoints.begin(
                self.state.step, self.state.state_dict(), self.state.reward, self.ranks,
                validation_reward=metrics.get(names.VALIDATION_REWARD),
            )  # fmt: skip
        self.saved, self.lost = self.state.step, False

    def _finish_checkpoint(self) -> None:
        with self.reporting.phase("checkpoint"):
            self.checkpoints.finish()
        self._forget_needless(self.checkpoints.poll())

    def _forget_needless(self, durable: CheckpointRef | None) -> None:
        """A new durable checkpoint of this attempt makes older groups needless, and old failures with them.

        Raises FencedError for one that was superseded: the later attempt may want those groups. A volume that does not
        let them be deleted fails nothing that is durable; the next checkpoint tries again.
        """
        if durable is None:
            return
        attempt = durable.manifest.attempt
        try:
            check_not_superseded(self.volume, attempt)
            truncate(self.volume, durable.manifest.step, attempt)
        except InfrastructureError as error:
            log.warning("journal_not_truncated", reason=str(error))
        if self.reinforced is not None:
            self.reinforced.rollouts.durable()

    def _answer(self, request: Request) -> None:
        """The checkpoint that was asked for is there."""
        self.requests.done(request)
        step, total = self.state.step, self.spec.total_steps
        if request.stop and step < total:
            raise StoppedOnRequest(f"stopped after step {step} of {total}, with a checkpoint")
