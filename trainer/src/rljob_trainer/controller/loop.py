"""The training loop.

    supervised step:  examples -> update
    RL step:          rollout + rewards -> prepare -> advantages -> update -> sync + probe      (reinforced.py)
    after either:     [validate] -> [checkpoint] -> one line of metrics

One thread. While it waits for engines, reward processes score what is finished; while it waits for ranks, engines
sleep. Supervised steps, where a job has them, come first and count as steps of the run.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import structlog

from rljob_api import ResolvedSpec
from rljob_trainer.actor.packing import TokenSequence
from rljob_trainer.actor.worker import Stage
from rljob_trainer.controller.batches import batch_of_sequences
from rljob_trainer.controller.checkpoints import Checkpoints
from rljob_trainer.controller.metrics import Metrics, supervised_metrics
from rljob_trainer.controller.reinforced import ReinforcedSteps
from rljob_trainer.controller.reporting import Reporting
from rljob_trainer.controller.stages import learning_rate_of, stage_of, supervised_batch, supervised_steps
from rljob_trainer.controller.state import LoopState
from rljob_trainer.controller.workers import START_SECONDS, UPDATE_SECONDS, ActorGroup
from rljob_trainer.errors import StoppedOnRequest
from rljob_trainer.progress import names

log = structlog.get_logger()


@dataclass(slots=True)
class Loop:
    """One attempt's way through the steps; the driver wires it.

    stage: the one whose optimizer the ranks hold; None before the first.
    reinforced: None for a supervised job.
    stop: set when somebody asks to checkpoint and stop.
    """

    spec: ResolvedSpec
    state: LoopState
    stage: Stage | None
    actors: ActorGroup
    reinforced: ReinforcedSteps | None
    checkpoints: Checkpoints
    reporting: Reporting
    stop: threading.Event

    def run(self) -> None:
        """Train to the last step. Raises StoppedOnRequest, after a checkpoint, when `stop` is set."""
        self.reporting.begin(self.state.step, self.spec.total_steps, supervised_steps(self.spec))
        for step in self._steps():
            start = time.monotonic()
            self._enter(stage_of(self.spec, step))
            tokens, metrics = self._train(step)
            self._checkpoint_if_due(step)
            seconds = time.monotonic() - start
            metrics |= {names.TIME_STEP: seconds, names.TOKENS_PER_SECOND: tokens / seconds}
            self.reporting.step_done(step, stage_of(self.spec, step), metrics)
            self._stop_if_asked(step)
        if not self._due(self.state.step):  # the data ended before the steps did
            self._checkpoint()

    def _steps(self) -> Iterator[int]:
        while self.state.step < self.spec.total_steps:
            step = self.state.step + 1
            if self.state.exhausted(stage_of(self.spec, step)):
                log.info("data_exhausted", step=self.state.step, epochs=self.spec.training.epochs)
                return
            yield step

    def _enter(self, stage: Stage) -> None:
        first = stage != self.stage
        if first:
            with self.reporting.phase("start"):
                self.actors.call("begin_stage", START_SECONDS, stage)
            self.stage = stage
        if stage == "rl" and self.reinforced is not None:
            self.reinforced.start(self.state, validate=first and self.spec.training.validate_before_training)

    def _train(self, step: int) -> tuple[int, Metrics]:
        if self.reinforced is not None and self.stage == "rl":
            tokens, metrics = self.reinforced.step(step, self.state)
        else:
            tokens, metrics = self._supervised_step(step)
        self.state.step = step
        return tokens, metrics

    def _supervised_step(self, step: int) -> tuple[int, Metrics]:
        assert self.state.examples is not None
        examples = self.state.examples.next(supervised_batch(self.spec))
        sequences = [TokenSequence(example.token_ids, example.prompt_tokens) for example in examples]
        batch = batch_of_sequences(sequences, self.spec)
        rate = learning_rate_of(self.spec, step)
        with self.reporting.phase("update"):
            each = [(plan,) for plan in batch.plans]
            sums = self.actors.call("supervised_step", UPDATE_SECONDS, batch.totals, sequences, rate, each=each)
        return batch.tokens, supervised_metrics(sums, rate) | {names.EPOCH: float(self.state.examples.epoch)}

    def _due(self, step: int) -> bool:
        return self.checkpoints.due(step, self.spec.total_steps)

    def _checkpoint_if_due(self, step: int) -> None:
        if self._due(step):
            self._checkpoint()

    def _checkpoint(self) -> None:
        with self.reporting.phase("checkpoint"):
            self.checkpoints.save(self.state.step, self.state.state_dict(), self.state.reward, self.actors)

    def _stop_if_asked(self, step: int) -> None:
        if self.stop.is_set() and step < self.spec.total_steps:
            if not self._due(step):
                self._checkpoint()
            raise StoppedOnRequest(f"stopped after step {step} of {self.spec.total_steps}, with a checkpoint")
