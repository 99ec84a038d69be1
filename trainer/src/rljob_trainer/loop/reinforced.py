"""RL steps: a group of episodes for each task, their rewards, one update, new weights for the engines.

    _roll_out     tasks -> journal, or engines -> scorer      groups; tensors stay in Ray's object store
    _prepare      ranks fetch their trajectories and score them with the reference, if the algorithm compares
    use           meanwhile: the journal's record of what the update uses
    advantages    meanwhile, from rewards alone, in the driver; or after it, if they need a KL penalty or values
    update        every rank, its own trajectories; the ranks keep the state that they are then in
    sync          weights -> engines, then the probe; the ranks begin it by themselves

After a failure the same steps run again: what a step used is in the journal, and engines get weights when they have to
generate. They sleep from the end of the rollout to the sync, so they and the ranks can share GPUs.
"""

import math
from dataclasses import dataclass

import numpy as np
import structlog

from rljob_api import ResolvedSpec
from rljob_trainer.data.stream import TaskStream
from rljob_trainer.journal import Used
from rljob_trainer.loop.agreement import Agreement
from rljob_trainer.loop.bad_batches import trained_rows
from rljob_trainer.loop.batches import StepBatch, advantages, batch_of_groups, gather
from rljob_trainer.loop.metrics import (
    Metrics,
    all_rewards,
    critic_metrics,
    divergence_metrics,
    recovery_metrics,
    sync_metrics,
    update_metrics,
    validation_metrics,
)
from rljob_trainer.loop.reporting import Reporting
from rljob_trainer.loop.selection import Selection, accuracy, scored_groups, summaries
from rljob_trainer.loop.stages import critic_learning_rate_of, learning_rate_of
from rljob_trainer.loop.state import LoopState
from rljob_trainer.loop.valuing import Valued, valued
from rljob_trainer.progress import names
from rljob_trainer.rank.client import RankClient
from rljob_trainer.rank.results import Prepared
from rljob_trainer.rank.training_state import RankStates
from rljob_trainer.rollouts.calls import GroupRef, Order, PolicyName
from rljob_trainer.rollouts.rollouts import Rollout, Rollouts
from rljob_trainer.types import Floats, Sampling, Task
from rljob_trainer.workers.worker import Pending

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """What settings decide (journal.fingerprint): an update, and which groups a step uses."""

    update: str
    step: str


@dataclass(slots=True)
class ReinforcedSteps:
    """The RL part of a job.

    validation: the tasks to validate on.
    replaying: the journal may hold the next step; False as soon as it does not.
    agreement: ends the run if its engines stay unlike the trainer.
    """

    spec: ResolvedSpec
    fingerprints: Fingerprints
    state: LoopState
    ranks: RankClient
    rollouts: Rollouts
    validation: list[Task]
    reporting: Reporting
    replaying: bool
    agreement: Agreement

    def validate_first(self) -> None:
        """Before the first RL step, for comparison; once, however many attempts begin that step."""
        step, wanted = self.state.step, self.spec.training.validate_before_training and self.validation
        if wanted and not self.reporting.has_validated(step):
            self.reporting.validated(step, self._validate(step))

    def step(self, step: int, held: RankStates | None) -> tuple[int, Metrics]:
        """One step; returns its tokens and metrics. held: of ranks that have done this very update already.

        Their step takes no groups: if its journal is damaged, engines would make others, with later weights.
        """
        rate, taken_over = learning_rate_of(self.spec, step), held is not None
        if held is None:
            held = self._train(step, rate)
        else:
            self.state.load_state_dict(held.training_state.after)
        self.state.observe("rl", held.updated)
        self.state.gradients.check(step, held.updated[0].sums.skipped, kept=not taken_over)
        if (critic := held.updated[0].critic) is not None:
            self.state.critic_gradients.check(step, critic.skipped, kept=not taken_over)
        in_loss = self.spec.algorithm.kl.placement == "loss" and self.spec.needs_reference
        metrics = held.training_state.metrics | update_metrics(held.updated, rate, in_loss) | self._sync()
        if self.spec.teacher_top_k:
            metrics |= divergence_metrics(held.updated)
        if self.spec.critic is not None:
            metrics |= critic_metrics(held.updated, critic_learning_rate_of(self.spec, step))
        metrics |= self._validate_if_due(step)
        return held.training_state.tokens, metrics | {names.POLICY_VERSION: float(step)}

    def _train(self, step: int, rate: float) -> RankStates:
        before = self.state.state_dict()
        used = self._next_used()
        groups = self._groups_of(used) if used is not None else None
        if used is not None and groups is not None:
            log.info("step_replayed", step=step, groups=len(groups))
            metrics = dict(used.metrics) | recovery_metrics(len(groups), len(groups))
        else:
            groups, used, metrics = self._roll_out(step)
        self.rollouts.sleep()  # in a replay, a validation may have woken the engines
        if self.spec.rewarded:
            self.state.reward = float(all_rewards(summaries(groups)).mean())
        return self._update(groups, used, rate, before, metrics)

    # ------------------------------------------------------------------ rollout

    def _next_used(self) -> Used | None:
        """What the next step used, if it was begun before; an attempt asks until it was not."""
        used = None
        if self.replaying:
            used = self.rollouts.step_used(self.state.policy_digest, self.fingerprints.step)
            self.replaying = used is not None
        return used

    def _groups_of(self, used: Used) -> list[GroupRef] | None:
        """The groups of a recorded step, in their order; None if one is missing: the record is void then.

        Moves the position in the data behind the step. Raises DataError if the record is of other data.
        """
        prompts = self._prompts()
        before = prompts.state_dict()
        prompts.load_state_dict(used.position)  # first: the rows of other data need not have these tasks
        tasks = [prompts.task(task_id) for task_id, _ in used.groups]
        found = {group.summary.task_id: group for group in self.rollouts.find(self._order(tasks))}
        if any(task_id not in found or found[task_id].summary.digest != digest for task_id, digest in used.groups):
            log.warning("used_record_void", step=used.step, groups=len(used.groups), found=len(found))
            prompts.load_state_dict(before)
            return None
        return [found[task_id] for task_id, _ in used.groups]

    def _roll_out(self, step: int) -> tuple[list[GroupRef], Used, Metrics]:
        """Groups to train on. With dynamic sampling, groups that teach nothing are replaced for some rounds."""
        prompts, settings = self._prompts(), self.spec.algorithm.dynamic_sampling
        selection = Selection(
            step,
            self.spec.data.prompts_per_step,
            self.spec.algorithm,
            rewarded=self.spec.rewarded,
            penalties=self.spec.rewards.penalties,
        )
        for _ in range(settings.max_rounds if settings.enabled else 1):
            tasks = prompts.next(math.ceil(selection.needed * (1 + settings.oversample)))
            selection.add(self._round(tasks, selection), len(tasks))
            if not selection.needed or prompts.exhausted:
                break
        trained = selection.trained()
        prompts.issue_again(selection.to_try_again())
        for group in selection.scored():
            prompts.measure(group.summary.task_id, accuracy(group.summary, selection.penalties))
        metrics = selection.metrics() | {names.EPOCH: float(prompts.epoch)}
        return trained, self._used(step, trained, selection.dropped(), metrics), metrics | selection.found()

    def _used(self, step: int, groups: list[GroupRef], dropped: dict[str, str], metrics: Metrics) -> Used:
        return Used(
            digest=self.state.policy_digest,
            step=step,
            fingerprint=self.fingerprints.step,
            groups=tuple((group.summary.task_id, group.summary.digest) for group in groups),
            dropped=dropped,
            position=self._prompts().state_dict(),
            metrics=metrics,
        )

    def _round(self, tasks: list[Task], selection: Selection) -> Rollout:
        """With more tasks than the step can use, the slowest are aborted."""
        needed = selection.needed
        enough = (lambda groups: needed - selection.usable(groups)) if len(tasks) > needed else None
        with self.reporting.phase("rewards"):  # all but the generation and the start of engines
            self.reporting.now("rollout")
            done = self.rollouts.collect(self._order(tasks), enough)
            self.reporting.add_time("rollout", done.generate_seconds)
            self.reporting.engines_worked(done.engine_seconds)
        return done

    def _order(self, tasks: list[Task]) -> Order:
        rollout = self.spec.rollout
        sampling = Sampling(
            self.spec.data.max_response_tokens, rollout.temperature, rollout.top_p, rollout.top_k, tuple(rollout.stop)
        )
        baseline = self.spec.algorithm.advantage == "remax"
        return Order("training", self._policy(), tasks, rollout.samples_per_prompt, sampling, baseline)

    def _policy(self) -> PolicyName:
        return PolicyName(self.state.step, self.state.policy_digest)

    def _prompts(self) -> TaskStream:
        assert self.state.prompts is not None
        return self.state.prompts

    # ------------------------------------------------------------------ update

    def _update(
        self, groups: list[GroupRef], used: Used, rate: float, before: dict[str, object], metrics: Metrics
    ) -> RankStates:
        batch = batch_of_groups(summaries(groups), self.spec)
        metrics = metrics | self.state.kl.metrics()
        with self.reporting.phase("advantage"):
            recorded = self.rollouts.use(used)
            prepared = self.ranks.prepare(batch.plans, batch.totals, groups)
            penalties, kl = self._penalties(prepared.result(), batch) if self.spec.kl_in_reward else (None, {})
            teacher, taught = self._taught(prepared, batch)
            found = self._advantages(groups, batch, penalties, teacher)
            recorded()
        self.state.advance(self.fingerprints.update, [group.summary.digest for group in groups])
        pairs = {names.GROUPS_PAIRS: float(batch.pairs)} if self.spec.pairs else {}
        mark = self.state.mark("rl", before, metrics | pairs | kl | taught | found.metrics, batch.tokens)
        with self.reporting.phase("update"):
            updating = self.ranks.update(
                found.advantages, rate, self.state.kl.coefficient, mark, self.state.gradients.bound, found.orders
            )
            if not self.replaying:
                self.rollouts.begin_sync(self._policy(), updating)  # ranks need not wait for us between the two
            prepared.result()  # first: what went wrong there is behind what the update then says
            updated = updating.result()
        if updated[0].skipped:
            own = batch.of_each(found.advantages)
            self.reporting.bad_batch(trained_rows(self.reporting.fetch(groups), own, self.state.step))
        return RankStates(mark, updated)

    def _advantages(
        self, groups: list[GroupRef], batch: StepBatch, penalties: Floats | None, teacher: Floats | None
    ) -> Valued:
        taken, step = summaries(groups), self.state.step + 1
        if self.spec.critic is None:
            return Valued(advantages(taken, batch, penalties, self.spec, teacher), None, {})
        values, bound = self.ranks.values().result(), self.state.critic_gradients.bound
        return valued(taken, batch, penalties, values, self.spec, step, bound, teacher)

    def _taught(self, prepared: Pending[Prepared], batch: StepBatch) -> tuple[Floats | None, Metrics]:
        """The teacher's signal for each token in the loss, and the mean reverse KL."""
        teacher = self.spec.algorithm.teacher
        if teacher is None:
            return None, {}
        if self.spec.teacher_top_k:  # the loss compares them
            return np.zeros(batch.loss_tokens.sum(), np.float32), {}
        reverse_kl = gather(batch, [part.reverse_kl or [] for part in prepared.result()])
        return (-teacher.coefficient * reverse_kl).astype(np.float32), {names.REVERSE_KL: float(reverse_kl.mean())}

    def _penalties(self, by_rank: list[Prepared], batch: StepBatch) -> tuple[Floats, Metrics]:
        controller = self.state.kl
        token_kl = gather(batch, [part.kl or [] for part in by_rank])
        penalties = (controller.coefficient * token_kl).astype(np.float32)
        controller.update(float(token_kl.sum()) / len(batch.owners), len(batch.owners))
        return penalties, {names.ACTOR_KL: float(token_kl.mean())}

    def _sync(self) -> Metrics:
        """New weights for the engines, if they need them: a replay does not."""
        if self.replaying:
            return {}
        with self.reporting.phase("sync"):
            synced = self.rollouts.sync(self._policy())
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
        averages = self.spec.actor.ema_decay is not None
        policy = self._policy()
        if averages:
            policy = PolicyName(policy.version, f"{policy.digest} averaged")
            self.ranks.exchange_average()
        order = Order("validation", policy, self.validation, settings.samples_per_prompt, sampling)
        with self.reporting.phase("validation"):
            done = self.rollouts.collect(order)
            self.reporting.engines_worked(done.engine_seconds)
            scored, _ = scored_groups(done, step)
            if averages:
                self.ranks.exchange_average()
            self.reporting.samples(step, done.groups)
        found = summaries(scored)
        failed = len(self.validation) * settings.samples_per_prompt - sum(len(each.rewards) for each in found)
        metrics = validation_metrics(found, {task.id: task.data_source for task in self.validation})
        return metrics | {names.VALIDATION_FAILED: float(failed)}
