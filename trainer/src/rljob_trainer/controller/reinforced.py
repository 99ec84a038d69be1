"""RL steps: a group of responses to each prompt, their rewards, one update, new weights for the engines.

    _roll_out     prompts -> engines -> rewards           groups; tensors stay in Ray's object store
    _prepare      ranks fetch their samples and score them with the reference, where the algorithm compares
    advantages    from rewards alone (and KL penalties), on the controller
    update        every rank, its own samples
    sync          weights -> engines, then the probe

Engines sleep from the end of the rollout to the sync, so that they and the ranks can share GPUs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import structlog

from rljob_api import ResolvedSpec
from rljob_trainer.actor.worker import Prepared
from rljob_trainer.advantage import uninformative_groups
from rljob_trainer.controller.batches import StepBatch, advantages, batch_of_groups, gather
from rljob_trainer.controller.metrics import (
    Metrics,
    all_rewards,
    length_metrics,
    mean_kl,
    reward_metrics,
    sync_metrics,
    update_metrics,
)
from rljob_trainer.controller.reporting import Reporting
from rljob_trainer.controller.rollouts import Rollout, ScoredGroup, roll_out
from rljob_trainer.controller.stages import learning_rate_of
from rljob_trainer.controller.state import LoopState
from rljob_trainer.controller.sync import WeightSync
from rljob_trainer.controller.workers import (
    START_SECONDS,
    SYNC_SECONDS,
    UPDATE_SECONDS,
    ActorGroup,
    EngineGroup,
    rollout_seconds,
)
from rljob_trainer.errors import RewardError
from rljob_trainer.losses.kl_controller import KlController
from rljob_trainer.progress import names
from rljob_trainer.rollout.worker import sample_seed
from rljob_trainer.types import Floats, Prompt, Sampling

log = structlog.get_logger()


@dataclass(slots=True)
class ReinforcedSteps:
    """The RL part of a job. validation: the prompts to validate on."""

    spec: ResolvedSpec
    actors: ActorGroup
    engines: EngineGroup
    rewards: Any
    sync: WeightSync
    validation: list[Prompt]
    reporting: Reporting
    started: bool = False

    def start(self, state: LoopState, *, validate: bool) -> None:
        """Start the engines and give them the policy as it is; once."""
        if self.started:
            return
        with self.reporting.phase("start"):
            info = self.engines.start(self.actors.call("visible_gpu", START_SECONDS))
            log.info("engines_started", engines=len(info), **info[0])
        with self.reporting.phase("sync"):
            self.sync.send(state.step)
        state.policy_version = state.step
        self.started = True
        if validate and self.validation:
            self.reporting.validated(state.step, self._validate(state.step))

    def step(self, step: int, state: LoopState) -> tuple[int, Metrics]:
        """One step; returns its tokens and metrics."""
        groups, metrics = self._roll_out(step, state)
        batch = batch_of_groups(groups, self.spec)
        with self.reporting.phase("advantage"):
            penalties, kl = self._prepare(groups, batch, state.kl)
            values = advantages(groups, batch, penalties, self.spec)
        rate = learning_rate_of(self.spec, step)
        with self.reporting.phase("update"):
            each = [(own,) for own in values]
            updated = self.actors.call("update", UPDATE_SECONDS, rate, state.kl.coefficient, each=each)
        with self.reporting.phase("sync"):
            synced = self.sync.send(step)
        state.policy_version = step
        metrics |= update_metrics(updated, rate) | sync_metrics(synced.reports, synced.probes)
        if self.spec.algorithm.kl.placement == "loss" and self.spec.needs_reference:
            kl = {names.ACTOR_KL: mean_kl([part.sums for part in updated])}
        metrics |= self._validate_if_due(step)
        return batch.tokens, metrics | kl | {names.POLICY_VERSION: float(step)}

    # ------------------------------------------------------------------ rollout

    def _roll_out(self, step: int, state: LoopState) -> tuple[list[ScoredGroup], Metrics]:
        """Groups to train on. With dynamic sampling, groups that teach nothing are replaced for some rounds."""
        assert state.prompts is not None
        settings, wanted = self.spec.algorithm.dynamic_sampling, self.spec.data.prompts_per_step
        kept: list[ScoredGroup] = []
        flat: list[ScoredGroup] = []
        failed: list[str] = []
        for _ in range(settings.max_rounds if settings.enabled else 1):
            groups, errors = self._round(step, state.prompts.next(wanted - len(kept)))
            failed += errors
            useful, useless = _split(groups)
            flat += useless
            kept += useful if settings.enabled else groups
            if len(kept) == wanted or state.prompts.exhausted:
                break
        if not kept + flat:
            raise RewardError(f"every group of step {step} was left out; the last: {failed[-1]}", field="spec.rewards")
        self.engines.call("sleep", SYNC_SECONDS)
        trained = kept or flat
        state.reward = float(all_rewards(trained).mean())
        counts = {names.GROUPS_UNINFORMATIVE: float(len(flat)), names.GROUPS_DROPPED: float(len(failed))}
        epoch = {names.EPOCH: float(state.prompts.epoch)}
        return trained, reward_metrics(trained) | length_metrics(trained) | counts | epoch

    def _round(self, step: int, prompts: list[Prompt]) -> tuple[list[ScoredGroup], list[str]]:
        """The groups that were scored, and why others were not."""
        rollout = self.spec.rollout
        sampling = Sampling(
            self.spec.data.max_response_tokens, rollout.temperature, rollout.top_p, rollout.top_k, tuple(rollout.stop)
        )
        self.reporting.now("rollout")
        done = self._generate(step, prompts, rollout.samples_per_prompt, sampling)
        self.reporting.add_time("rollout", done.generate_seconds)
        self.reporting.add_time("rewards", done.reward_seconds)
        errors = [error for group in done.groups if (error := group.summary.score.error) is not None]
        for error in errors:
            log.warning("group_dropped", step=step, reason=error)
        return [group for group in done.groups if group.summary.score.error is None], errors

    def _generate(self, step: int, prompts: list[Prompt], samples: int, sampling: Sampling) -> Rollout:
        seed = self.spec.rollout.seed
        seeds = [[sample_seed(seed, step, prompt.id, index) for index in range(samples)] for prompt in prompts]
        return roll_out(self.engines.workers, self.rewards, prompts, seeds, sampling, rollout_seconds(self.spec))

    # ------------------------------------------------------------------ update

    def _prepare(
        self, groups: list[ScoredGroup], batch: StepBatch, controller: KlController
    ) -> tuple[Floats | None, Metrics]:
        each = [(plan,) for plan in batch.plans]
        references = [group.group for group in groups]
        prepared: list[Prepared] = self.actors.call("prepare", UPDATE_SECONDS, batch.totals, *references, each=each)
        if prepared[0].token_kl is None:
            return None, {}
        token_kl = gather(batch, [part.token_kl or [] for part in prepared])
        penalties = (controller.coefficient * token_kl).astype(np.float32)
        controller.update(float(token_kl.sum()) / len(batch.owners), len(batch.owners))
        return penalties, {names.ACTOR_KL: float(token_kl.mean())}

    # ------------------------------------------------------------------ validation

    def _validate_if_due(self, step: int) -> Metrics:
        every = self.spec.training.validate_every
        due = every > 0 and (step % every == 0 or step == self.spec.total_steps)
        return self._validate(step) if due and self.validation else {}

    def _validate(self, step: int) -> Metrics:
        settings = self.spec.rollout.validation
        sampling = Sampling(
            self.spec.data.max_response_tokens, settings.temperature, settings.top_p, stop=tuple(self.spec.rollout.stop)
        )
        with self.reporting.phase("validation"):
            done = self._generate(step, self.validation, settings.samples_per_prompt, sampling).groups
            scored = [group for group in done if group.summary.score.error is None]
            self.reporting.samples(step, scored)
        return {names.VALIDATION_REWARD: float(all_rewards(scored).mean())} if scored else {}


def _split(groups: list[ScoredGroup]) -> tuple[list[ScoredGroup], list[ScoredGroup]]:
    """Groups whose rewards differ, and those whose rewards are all equal."""
    if not groups:
        return [], []
    sizes = [len(group.summary.score.rewards) for group in groups]
    equal = set(uninformative_groups(all_rewards(groups), np.repeat(np.arange(len(groups)), sizes)).tolist())
    return [g for i, g in enumerate(groups) if i not in equal], [g for i, g in enumerate(groups) if i in equal]
