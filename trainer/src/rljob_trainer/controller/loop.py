"""The training loop.

    supervised step:  examples -> update
    RL step:          rollout + rewards -> prepare -> advantages -> update -> sync + probe      (reinforced.py)
    after either:     [validate] -> [checkpoint, where due or asked for] -> one line of metrics -> [stop]

One thread. While it waits for engines, reward processes score what is finished; while it waits for ranks, engines
sleep. Supervised steps, where a job has them, come first and count as steps of the run.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import structlog

from rljob_api import ResolvedSpec
from rljob_trainer.actor.packing import TokenSequence
from rljob_trainer.controller.batches import batch_of_sequences
from rljob_trainer.controller.checkpoints import Checkpoints
from rljob_trainer.controller.metrics import Metrics, supervised_metrics
from rljob_trainer.controller.reinforced import ReinforcedSteps
from rljob_trainer.controller.reporting import Reporting
from rljob_trainer.controller.requests import Request, Requests
from rljob_trainer.controller.stages import learning_rate_of, stage_of, supervised_batch, supervised_steps
from rljob_trainer.controller.state import LoopState
from rljob_trainer.controller.workers import START_SECONDS, UPDATE_SECONDS, ActorGroup
from rljob_trainer.errors import StoppedOnRequest
from rljob_trainer.progress import names
from rljob_trainer.progress.metrics import Stage

log = structlog.get_logger()


@dataclass(slots=True)
class Loop:
    """One attempt's way through the steps; its owner wires it.

    stage: the one whose optimizer the ranks hold; None before the first.
    reinforced: None for a supervised job.
    """

    spec: ResolvedSpec
    state: LoopState
    stage: Stage | None
    actors: ActorGroup
    reinforced: ReinforcedSteps | None
    checkpoints: Checkpoints
    reporting: Reporting
    requests: Requests

    def run(self) -> None:
        """Train to the last step. Raises StoppedOnRequest, after a checkpoint, when somebody asks to stop."""
        self.reporting.begin(self.state.step, self.spec.total_steps, supervised_steps(self.spec))
        saved = self.state.step
        for step in self._steps():
            start = time.monotonic()
            self._enter(stage_of(self.spec, step))
            tokens, metrics = self._train(step)
            request = self.requests.pending()
            if request or self.checkpoints.due(step, self.spec.total_steps):
                saved = self._checkpoint()
            seconds = time.monotonic() - start
            metrics |= {names.TIME_STEP: seconds, names.TOKENS_PER_SECOND: tokens / seconds}
            self.reporting.step_done(step, stage_of(self.spec, step), metrics)
            if request:
                self._answer(request)
        if saved < self.state.step:  # the data ended before the steps did
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

    def _checkpoint(self) -> int:
        """Returns its step."""
        with self.reporting.phase("checkpoint"):
            self.checkpoints.save(self.state.step, self.state.state_dict(), self.state.reward, self.actors)
        return self.state.step

    def _answer(self, request: Request) -> None:
        """The checkpoint that was asked for is there."""
        self.requests.done(request)
        step, total = self.state.step, self.spec.total_steps
        if request.stop and step < total:
            raise StoppedOnRequest(f"stopped after step {step} of {total}, with a checkpoint")
