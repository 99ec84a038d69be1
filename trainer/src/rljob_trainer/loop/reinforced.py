"""RL steps: a group of responses to each prompt, their rewards, one update, new weights for the engines.

    _roll_out     prompts -> journal, or engines -> scorer    groups; tensors stay in Ray's object store
    _prepare      ranks fetch their samples and score them with the reference, where the algorithm compares
    advantages    meanwhile, from rewards alone, on the controller; or after it, where rewards hold a KL penalty
    update        every rank, its own samples; the ranks keep the mark of what they then are
    sync          weights -> engines, then the probe; the ranks begin it by themselves

After a failure the same steps run again: groups come from the journal as long as it has any, and engines get weights
when they have to generate. They sleep from the end of the rollout to the sync, so they and the ranks can share GPUs.
"""

from dataclasses import dataclass

import numpy as np
import structlog

from rljob_api import ResolvedSpec
from rljob_trainer.advantage import uninformative_groups
from rljob_trainer.bridge import refs, summaries
from rljob_trainer.engines.engine_worker import sample_seed
from rljob_trainer.errors import RewardError
from rljob_trainer.journal import GroupKey
from rljob_trainer.loop.batches import StepBatch, advantages, batch_of_groups, gather
from rljob_trainer.loop.metrics import (
    Metrics,
    all_rewards,
    length_metrics,
    mean_kl,
    recovery_metrics,
    reward_metrics,
    sync_metrics,
    update_metrics,
)
from rljob_trainer.loop.reporting import Reporting
from rljob_trainer.loop.stages import learning_rate_of
from rljob_trainer.loop.state import LoopState
from rljob_trainer.old_types import Floats, Prompt, Sampling
from rljob_trainer.progress import names
from rljob_trainer.rank.client import Pending, RankClient
from rljob_trainer.rank.results import Prepared
from rljob_trainer.rank.training_state import RankStates
from rljob_trainer.rollouts.rollouts import Order, Rollout, Rollouts, ScoredGroup
from rljob_trainer.rollouts.synced_engines import SyncedEngines

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """What the settings of an update and of a rollout decide (journal.fingerprint)."""

    update: str
    rollout: str


@dataclass(slots=True)
class ReinforcedSteps:
    """The RL part of a job. validation: the prompts to validate on."""

    spec: ResolvedSpec
    attempt: int
    fingerprints: Fingerprints
    state: LoopState
    ranks: RankClient
    engines: SyncedEngines
    rollouts: Rollouts
    validation: list[Prompt]
    reporting: Reporting

    def validate_first(self) -> None:
        """Before the first RL step, for comparison; once, however many attempts begin that step."""
        step, wanted = self.state.step, self.spec.training.validate_before_training and self.validation
        if wanted and not self.reporting.has_validated(step):
            self.reporting.validated(step, self._validate(step))

    def step(self, step: int, held: RankStates | None) -> tuple[int, Metrics]:
        """One step; returns its tokens and metrics. held: of ranks that have done this very update already.

        Their step takes no groups: where its journal is damaged, engines would make others, with weights of after it.
        """
        rate = learning_rate_of(self.spec, step)
        if held is None:
            held = self._train(step, rate)
        else:
            self.state.load_state_dict(held.training_state.after)
        metrics = held.training_state.metrics | update_metrics(held.updated, rate) | self._sync()
        if self.spec.algorithm.kl.placement == "loss" and self.spec.needs_reference:
            metrics[names.ACTOR_KL] = mean_kl(held.updated)
        metrics |= self._validate_if_due(step)
        return held.training_state.tokens, metrics | {names.POLICY_VERSION: float(step)}

    def _train(self, step: int, rate: float) -> RankStates:
        before = self.state.state_dict()
        groups, metrics = self._roll_out(step)
        return self._update(groups, batch_of_groups(summaries(groups), self.spec), rate, before, metrics)

    # ------------------------------------------------------------------ rollout

    def _roll_out(self, step: int) -> tuple[list[ScoredGroup], Metrics]:
        """Groups to train on. With dynamic sampling, groups that teach nothing are replaced for some rounds."""
        prompts = self.state.prompts
        assert prompts is not None
        settings, wanted = self.spec.algorithm.dynamic_sampling, self.spec.data.prompts_per_step
        kept: list[ScoredGroup] = []
        flat: list[ScoredGroup] = []
        failed: list[str] = []
        rounds: list[Rollout] = []
        for _ in range(settings.max_rounds if settings.enabled else 1):
            rounds.append(self._round(step, prompts.next(wanted - len(kept))))
            groups, errors = _scored(rounds[-1], step)
            failed += errors
            useful, useless = _split(groups)
            flat += useless
            kept += useful if settings.enabled else groups
            if len(kept) == wanted or prompts.exhausted:
                break
        if not kept + flat:
            raise RewardError(f"every group of step {step} was left out; the last: {failed[-1]}", field="spec.rewards")
        self.engines.sleep()
        trained = kept or flat
        self.state.reward = float(all_rewards(summaries(trained)).mean())
        counts = {names.GROUPS_UNINFORMATIVE: float(len(flat)), names.GROUPS_DROPPED: float(len(failed))}
        epoch = {names.EPOCH: float(prompts.epoch)}
        found = recovery_metrics(rounds)
        return trained, reward_metrics(summaries(trained)) | length_metrics(summaries(trained)) | counts | epoch | found

    def _round(self, step: int, prompts: list[Prompt]) -> Rollout:
        rollout = self.spec.rollout
        sampling = Sampling(
            self.spec.data.max_response_tokens, rollout.temperature, rollout.top_p, rollout.top_k, tuple(rollout.stop)
        )
        key = GroupKey(self.attempt, step, self.state.policy_digest, self.fingerprints.rollout)
        with self.reporting.phase("rewards"):  # all but the generation and the start of engines
            self.reporting.now("rollout")
            done = self._generate(step, prompts, rollout.samples_per_prompt, sampling, key)
            self.reporting.add_time("rollout", done.generate_seconds)
        return done

    def _generate(
        self, step: int, prompts: list[Prompt], samples: int, sampling: Sampling, key: GroupKey | None
    ) -> Rollout:
        seed = self.spec.rollout.seed
        seeds = [[sample_seed(seed, step, prompt.id, index) for index in range(samples)] for prompt in prompts]
        return self.rollouts.collect(Order(prompts, seeds, sampling, key))

    # ------------------------------------------------------------------ update

    def _update(
        self, groups: list[ScoredGroup], batch: StepBatch, rate: float, before: dict[str, object], metrics: Metrics
    ) -> RankStates:
        with self.reporting.phase("advantage"):
            prepared = self._prepare(groups, batch)
            penalties, kl = self._penalties(prepared.result(), batch) if self.spec.kl_in_reward else (None, {})
            values = advantages(summaries(groups), batch, penalties, self.spec)
        self.state.advance(self.fingerprints.update, [group.summary.digest for group in groups])
        mark = self.state.mark("rl", before, metrics | kl, batch.tokens)
        with self.reporting.phase("update"):
            updated = self.ranks.update(values, rate, self.state.kl.coefficient, mark)
            if not self._next_is_journaled():
                self.engines.begin_sync(updated)  # ranks need not wait for us between the two
            prepared.result()  # first, for what went wrong there is behind what the update then says
            return RankStates(mark, updated.result())

    def _prepare(self, groups: list[ScoredGroup], batch: StepBatch) -> Pending[Prepared]:
        return self.ranks.prepare(batch.plans, batch.totals, refs(groups, self.spec.rollout.temperature))

    def _penalties(self, prepared: list[Prepared], batch: StepBatch) -> tuple[Floats, Metrics]:
        controller = self.state.kl
        token_kl = gather(batch, [part.token_kl or [] for part in prepared])
        penalties = (controller.coefficient * token_kl).astype(np.float32)
        controller.update(float(token_kl.sum()) / batch.episodes, batch.episodes)
        return penalties, {names.ACTOR_KL: float(token_kl.mean())}

    def _next_is_journaled(self) -> bool:
        """Whether the next step's groups are in the journal: a replay needs no engine."""
        return self.rollouts.has(self.state.step + 1, self.state.policy_digest)

    def _sync(self) -> Metrics:
        """New weights for the engines, where they are needed."""
        if self._next_is_journaled():
            return {}
        with self.reporting.phase("sync"):
            synced = self.engines.hold_policy()
        return sync_metrics(synced) if synced else {}

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
            done = self._generate(step, self.validation, settings.samples_per_prompt, sampling, None).groups
            scored = [group for group in done if group.summary.score.error is None]
            self.reporting.samples(step, scored)
        return {names.VALIDATION_REWARD: float(all_rewards(summaries(scored)).mean())} if scored else {}


def _scored(rollout: Rollout, step: int) -> tuple[list[ScoredGroup], list[str]]:
    """The groups that were scored, and why others were not."""
    errors = [error for group in rollout.groups if (error := group.summary.score.error) is not None]
    for error in errors:
        log.warning("group_dropped", step=step, reason=error)
    return [group for group in rollout.groups if group.summary.score.error is None], errors


def _split(groups: list[ScoredGroup]) -> tuple[list[ScoredGroup], list[ScoredGroup]]:
    """Groups whose rewards differ, and those whose rewards are all equal."""
    if not groups:
        return [], []
    sizes = [len(group.summary.score.rewards) for group in groups]
    equal = set(uninformative_groups(all_rewards(summaries(groups)), np.repeat(np.arange(len(groups)), sizes)).tolist())
    return [g for i, g in enumerate(groups) if i not in equal], [g for i, g in enumerate(groups) if i in equal]
