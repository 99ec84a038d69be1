"""One rank of the trainer: process group, saver, models and the state of the step. calls.py says what is asked of it.

begin_save returns at once; whatever would change the state it saves waits until that has been copied (saver.py).
"""

import datetime
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import ray
import structlog
import torch
import torch.distributed as dist
from torch import Tensor, nn

from rljob_api import ResolvedSpec
from rljob_trainer.checkpoint.files import FileEntry
from rljob_trainer.checkpoint.random_state import restore_random_state
from rljob_trainer.checkpoint.saver import ShardSaver
from rljob_trainer.checkpoint.shards import load_shards
from rljob_trainer.compute.dtypes import compute_dtype
from rljob_trainer.compute.freed_memory import keep_freed_memory
from rljob_trainer.engines.engine_host import EngineProcess
from rljob_trainer.errors import InfrastructureError
from rljob_trainer.lora.layers import without_adapter
from rljob_trainer.losses.covariance import BY_COVARIANCE
from rljob_trainer.losses.diagnostics import ImportanceSums, importance_sums
from rljob_trainer.losses.kl import kl_estimate
from rljob_trainer.losses.totals import BatchTotals
from rljob_trainer.own.trial import try_loss
from rljob_trainer.progress.metrics import Stage
from rljob_trainer.rank.calls import RankCalls
from rljob_trainer.rank.compiling import compiled_graphs
from rljob_trainer.rank.correcting import correction_of, rejection_of, weigh
from rljob_trainer.rank.critic_step import queue_critic_step, value_samples
from rljob_trainer.rank.defaults import planned_here
from rljob_trainer.rank.forward import Critic, Policy, score_only
from rljob_trainer.rank.masking import recounted, without_rejected
from rljob_trainer.rank.memory import give_back, give_back_for_engines, in_phase
from rljob_trainer.rank.models.average import Average
from rljob_trainer.rank.models.critic import critic_of
from rljob_trainer.rank.models.policy import load_policy, with_fresh_optimizer
from rljob_trainer.rank.models.reference import Reference, reference_of
from rljob_trainer.rank.models.role import ModelRole, State
from rljob_trainer.rank.models.teacher import teacher_of
from rljob_trainer.rank.plan import RankPlan
from rljob_trainer.rank.rendezvous import join_store, open_store
from rljob_trainer.rank.results import (
    LARGEST_NORM,
    CriticOrder,
    Prepared,
    ProbeScores,
    RankInfo,
    Rendezvous,
    Sent,
    StepSums,
    Updated,
)
from rljob_trainer.rank.sending import bucket_bytes, send, sent_tensors
from rljob_trainer.rank.settings import RankSettings
from rljob_trainer.rank.shard import Shard, column, shard_of_groups, shard_of_pairs, shard_of_rows, split, within
from rljob_trainer.rank.sharding import COMPUTE_DTYPES
from rljob_trainer.rank.step import Trainee, find_likeliest, queue_policy_step, score_samples, supervised_step
from rljob_trainer.rank.training_state import RankState, TrainingState
from rljob_trainer.rank.usage import UpdateMeter
from rljob_trainer.types import Floats, Group, Ids, Trajectory, answered
from rljob_trainer.weights.sender import WeightSender
from rljob_trainer.workers.profile import Profile
from rljob_trainer.workers.trace import traced
from rljob_trainer.workers.worker import Worker

log = structlog.get_logger()

M = TypeVar("M", bound=nn.Module)


class Rank(RankCalls):
    """Holds one shard of each model.

    policy, reference: the reference is there in RL, or with preset dpo, if the algorithm compares with it.
    critic: what trains it, in RL with advantage gae. average: of the policy since the stage began (actor.emaDecay).
    teacher: in RL, if the job has one by path.
    others: further models, which are saved and restored with these.
    correction: of the difference between engine and trainer. rejection: its mask; None: all tokens stay.
    engine_bytes: rank.defaults'.
    """

    policy: ModelRole[Policy]

    def __init__(self, spec: ResolvedSpec, settings: RankSettings) -> None:
        self.spec = spec
        self.settings = settings
        self.device = torch.device(settings.device_type)
        self.reference: Reference | None = None
        self.critic: Trainee[Critic] | None = None
        self.average: Average | None = None
        self.teacher: ModelRole[Policy] | None = None
        self.others: list[ModelRole[nn.Module]] = []
        self.engine_bytes: int | None = None
        self.correction = spec.algorithm.rollout_correction
        self.rejection = rejection_of(self.correction)
        self._state: RankState | None = None
        self._aside: RankState | None = None
        self._shard: Shard | None = None
        self._profile = Profile("update")
        self._graphs = 0
        if settings.device_type == "cpu":
            keep_freed_memory()
            torch.set_num_threads(settings.threads)

    # ------------------------------------------------------------------ start

    def open_store(self, host: str | None = None) -> Rendezvous:
        self.store, rendezvous = open_store(host or str(ray.util.get_node_ip_address()))
        return rendezvous

    @in_phase("start")
    def connect(self, rendezvous: Rendezvous) -> RankInfo:
        timeout = datetime.timedelta(seconds=self.settings.collective_seconds)
        if self.settings.rank > 0:
            self.store = join_store(rendezvous, timeout)
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        rank, world = self.settings.rank, self.settings.world
        dist.init_process_group(backend, store=self.store, rank=rank, world_size=world, timeout=timeout)
        self.mesh = self.settings.parallel.mesh(self.device.type)
        self.sync_group, _ = dist.new_subgroups_by_enumeration(
            [list(ranks) for ranks in self.settings.sync_groups], timeout=timeout, backend="gloo"
        )
        hosts = self.settings.parallel.mesh("cpu")
        self.saver = ShardSaver(self.device, dist.new_group(timeout=timeout, backend="gloo"), hosts)
        gpu = torch.cuda.get_device_name() if self.device.type == "cuda" else None
        return RankInfo(rank, socket.gethostname(), os.getpid(), gpu)

    def visible_gpu(self) -> str | None:
        return os.environ.get("CUDA_VISIBLE_DEVICES") if self.device.type == "cuda" else None

    def give_back_memory(self) -> None:
        give_back(self.device)

    @in_phase("start")
    def load(self, folder: str, critic: str | None = None, teacher: str | None = None) -> int:
        self.saver.wait_staged()
        self.folder, self.critic_folder = Path(folder), Path(critic) if critic is not None else None
        self.teacher_folder = Path(teacher) if teacher is not None else None
        if self.spec.algorithm.loss_from is not None:
            try_loss(self.spec.algorithm)
        self.spec, self.engine_bytes = planned_here(
            self.spec, self.folder, self.critic_folder, self.teacher_folder, self.device
        )
        self.policy = load_policy(self.spec, self.folder, self.mesh)
        if self._drops():
            torch.manual_seed((self.spec.training.seed << 16) + self.settings.rank)
        return sum(parameter.numel() for parameter in self.policy.module.parameters())

    @in_phase("start")
    def begin_stage(self, stage: Stage) -> None:
        self.saver.wait_staged()
        self._state = None
        self.policy = with_fresh_optimizer(self.policy, self.spec, self.device)
        self.trainee = self.training(self.policy)
        if self.spec.actor.ema_decay is not None:
            self.average = Average(self.policy, self.spec.actor.ema_decay)
        if self.spec.needs_reference and (stage == "rl" or self.spec.supervised_only):
            self.reference = reference_of(self.policy, self.spec, self.folder, self.mesh)
        if stage == "rl" and self.spec.critic is not None:
            role = critic_of(self.policy, self.spec, self.folder, self.critic_folder, self.mesh, self.device)
            self.critic = self.training(role, self.spec.critic.grad_clip)
        if stage == "rl" and self.teacher_folder is not None:
            self.teacher = teacher_of(self.spec, self.teacher_folder, self.mesh)

    def _drops(self) -> bool:
        """Whether passes with a gradient leave out parts at random, so that they do not tell what the policy says."""
        return self.spec.model.lora is not None and self.spec.model.lora.dropout > 0

    def training(self, role: ModelRole[M], grad_clip: float | None = None) -> Trainee[M]:
        """What trains a model. role: with an optimizer. grad_clip: actor's by default."""
        assert role.optimizer is not None
        largest = self.spec.actor.grad_clip if grad_clip is None else grad_clip
        return Trainee(role, role.optimizer, self.device, self.settings.parallel, largest)

    def roles(self) -> list[ModelRole[nn.Module]]:
        """All models that this rank holds."""
        reference = self.reference.role if self.reference is not None else None
        return [
            self.policy,
            *([reference] if reference is not None else []),
            *([self.critic.role] if self.critic is not None else []),
            *([self.average.role] if self.average is not None else []),
            *([self.teacher] if self.teacher is not None else []),
            *self.others,
        ]

    # ------------------------------------------------------------------ what it holds, for the next driver

    def hold(self, training_state: TrainingState) -> None:
        self._state = RankState(training_state)

    def state(self) -> RankState | None:
        return self._state

    def collectives(self) -> int:
        """How many collectives this rank has entered, over all its process groups."""
        groups = dist.distributed_c10d._world.pg_map if dist.is_initialized() else ()  # noqa: SLF001  no public way
        return sum(group._get_sequence_number_for_group() for group in groups)  # type: ignore[attr-defined]  # noqa: SLF001

    # ------------------------------------------------------------------ steps

    @in_phase("update")
    def supervised_step(
        self, plan: RankPlan, totals: Sequence[BatchTotals], rows: Sequence[Trajectory], learning_rate: float,
        training_state: TrainingState, norm_bound: float = LARGEST_NORM,
    ) -> Updated:  # fmt: skip
        self.saver.wait_staged()
        self._state = None
        pairs, meter = self.spec.pairs and self.spec.supervised_only, UpdateMeter(self.device)
        shard = (shard_of_pairs if pairs else shard_of_rows)(plan, totals, rows)
        with self._profile.part():
            if pairs:
                self._score_with_reference(shard)
                sums = queue_policy_step(self.trainee, shard, self.spec, learning_rate, 0.0, norm_bound).read()
            else:
                sums = supervised_step(self.trainee, shard, learning_rate, norm_bound)
            self._follow()
        self._log_compilations()
        updated = Updated(sums, usage=meter.read(shard, [(self.policy.module, 1)]))
        self._state = RankState(training_state, updated)
        return updated

    @in_phase("update")
    def prepare(
        self, plan: RankPlan, totals: Sequence[BatchTotals], places: Sequence[tuple[int, int]],
        *bundles: Sequence[Group],
    ) -> Prepared:  # fmt: skip
        self._shard = None
        shard = shard_of_groups(plan, totals, [bundles[bundle][index] for bundle, index in places])
        bypass = self.correction.bypass_mode
        if self._scores_first(len(totals)):
            score_samples(self.policy.module, shard, "old_log_probs", self.device)
        self._score_with_reference(shard)
        self._ask_teacher(shard)
        if not bypass and self.correction.rollout_is != "none":
            weigh(shard.ordered, self.correction)
        self._shard = shard if bypass or self.rejection is None else without_rejected(shard, self.rejection)
        return Prepared(
            self._token_kl(shard) if self.spec.kl_in_reward else None,
            self._reverse_kl(shard) if self.spec.teaches_sampled_tokens else None,
        )

    def _ask_teacher(self, shard: Shard) -> None:
        """What the teacher says of the samples; its server said it before."""
        count = self.spec.teacher_top_k
        if self.teacher is not None and count:
            find_likeliest(self.teacher.module, shard, count, self.device)
        elif self.teacher is not None:
            score_samples(self.teacher.module, shard, "teacher_log_probs", self.device)
        if count:
            within(shard.ordered, self.policy.module.model.get_output_embeddings().weight.shape[0])

    def _score_with_reference(self, shard: Shard) -> None:
        if self.reference is not None:
            self.saver.wait_staged()  # its adapter may take the place of the policy's
            with self.reference.scoring() as policy:
                score_samples(policy, shard, "reference_log_probs", self.device)

    def _scores_first(self, minibatches: int) -> bool:
        """Whether the old log-probabilities are computed before the pass that trains."""
        if self._drops() or self.correction.bypass_mode:
            return self._drops()  # a bypass reports them alone
        several = minibatches * self.spec.actor.epochs > 1 or self.spec.algorithm.loss in BY_COVARIANCE
        corrects = self.rejection is not None or self.correction.rollout_is != "none"
        return several or corrects or self.spec.kl_in_reward or self.spec.teaches_sampled_tokens

    @in_phase("update")
    def values(self) -> list[Floats]:
        shard, critic = self._shard, self.critic
        if shard is None or critic is None:
            raise InfrastructureError("no groups are prepared for these values")
        value_samples(critic.module, shard, self.device)
        return split(column(shard.ordered, "values").numpy(), shard.ordered)

    def _token_kl(self, shard: Shard) -> list[Floats]:
        samples, estimator = shard.ordered, self.spec.algorithm.kl.estimator
        ours, reference = self._ours(shard), column(samples, "reference_log_probs")
        flat = kl_estimate(estimator, ours, reference, self.spec.algorithm.kl.clip)
        return split(flat.numpy(), samples)

    def _reverse_kl(self, shard: Shard) -> list[Floats]:
        difference = self._ours(shard) - column(shard.ordered, "teacher_log_probs")
        return split(difference.numpy(), shard.ordered)

    def _ours(self, shard: Shard) -> Tensor:
        """Log-probabilities of the policy that sampled, flat [sum of R]."""
        return column(shard.ordered, "engine_log_probs" if self.correction.bypass_mode else "old_log_probs")

    @in_phase("update")
    def update(
        self, advantages: Sequence[Floats], learning_rate: float, kl_coefficient: float, training_state: TrainingState,
        norm_bound: float = LARGEST_NORM, critic: CriticOrder | None = None,
    ) -> Updated:  # fmt: skip
        self.saver.wait_staged()
        shard, self._shard, self._state = self._shard, None, None
        if shard is None:
            raise InfrastructureError("no groups are prepared for this update")
        for sample, advantage in zip(shard.ordered, advantages, strict=True):
            sample.advantages = advantage
        meter, valued = UpdateMeter(self.device), None
        with self._profile.part():
            if critic is not None and critic.alone:
                sums = self._rest(shard)
            else:
                queued = queue_policy_step(self.trainee, shard, self.spec, learning_rate, kl_coefficient, norm_bound)
                sums = queued.read()  # waits: weights in host memory are complete
            trained: list[tuple[nn.Module, float]] = [
                (self.policy.module, sums.minibatches / len(shard.plan.minibatches))
            ]
            if critic is not None and self.critic is not None:
                valued = self._train_critic(self.critic, shard, critic)
                trained.append((self.critic.module, valued.minibatches / len(critic.plan.minibatches)))
            self._follow()
            if self.reference is not None and self.spec.refreshes_reference(training_state.step):
                self.reference.refresh()
        self._log_compilations()
        usage = meter.read(shard, trained)
        importance = _importance(shard, training_state.step - 1, bypass=self.correction.bypass_mode)
        scored = [sample for sample in shard.ordered if sample.old_log_probs is not None]
        updated = Updated(sums, importance, usage, correction_of(scored, self.correction), valued)
        self._state = RankState(training_state, updated)
        return updated

    def _follow(self) -> None:
        if self.average is not None:
            self.average.follow()

    @in_phase("update")
    def exchange_average(self) -> None:
        self.saver.wait_staged()
        assert self.average is not None
        self._state, self._aside = self._aside, self._state  # a driver that takes over in between finds none
        self.average.exchange()

    def _rest(self, shard: Shard) -> StepSums:
        """What a step without an update of the policy says of it."""
        if not self._scores_first(len(shard.totals)):
            score_samples(self.policy.module, shard, "old_log_probs", self.device)
        return StepSums(0.0, 0.0, 0.0, 0.0, 0, [])

    def _train_critic(self, critic: Trainee[Critic], shard: Shard, order: CriticOrder) -> StepSums:
        regrouped = replace(shard, plan=order.plan, totals=tuple(order.totals))
        counted = regrouped if self.rejection is None else recounted(regrouped)
        return queue_critic_step(critic, counted, self.spec, order).read()

    def _log_compilations(self) -> None:
        """Say when an update has compiled layers: lengths that compile without end would be seen here."""
        graphs = compiled_graphs()
        if graphs > self._graphs:
            log.info("layers_compiled", graphs=graphs, new=graphs - self._graphs)
        self._graphs = graphs

    @in_phase("update")
    def log_probs(self, trajectories: Sequence[Trajectory]) -> list[Floats]:
        """Log-probabilities [R] of each trajectory's tokens in the loss; every rank computes all of them."""
        batch = self.policy.module.pack(trajectories, self.device)
        flat = score_only(self.policy.module, batch)
        return np.split(flat.cpu().numpy(), np.cumsum(batch.loss_tokens)[:-1])

    # ------------------------------------------------------------------ weights

    @in_phase("weight sync")
    def send_weights(
        self, engines: Sequence[Worker[EngineProcess]], version: int, prompts: Sequence[Ids], max_tokens: int,
        deadline: float, whole: bool, *_updated: Updated,
    ) -> Sent:  # fmt: skip
        with traced("send_weights/give_back"):
            give_back_for_engines(self.device, self.spec, self.engine_bytes)  # the first call below wakes them
        dtype = compute_dtype(self.spec, self.device.type)
        network = self.policy.module.model
        size = bucket_bytes(network, self.spec, whole, COMPUTE_DTYPES[dtype])
        sender = WeightSender(self.device.type, dtype, size, self.sync_group)
        tensors = sent_tensors(network, self.spec, whole, self.device, COMPUTE_DTYPES[dtype])
        return send(sender, tensors, self.sync_group, engines, version, prompts, max_tokens, deadline)

    @in_phase("update")
    def score_probes(self, prompts: Sequence[Ids], *sent: Sent) -> ProbeScores:
        answers = [answer for each in sent for answer in each.answers]
        trajectories = [
            answered(prompt, sample.token_ids, sample.log_probs, 0, 1.0, sample.finish_reason)
            for answer in answers
            for prompt, sample in zip(prompts, answer, strict=True)
        ]
        sizes = [len(answer) for answer in answers]
        policy = _grouped(self.log_probs(trajectories), sizes)
        if self.spec.model.lora is None:
            return ProbeScores(policy)
        with without_adapter(self.policy.module.model):
            return ProbeScores(policy, _grouped(self.log_probs(trajectories), sizes))

    # ------------------------------------------------------------------ checkpoints

    @in_phase("checkpoint")
    def begin_save(self, directory: str) -> None:
        self.saver.begin(self.saved_state(), Path(directory))

    @in_phase("checkpoint")
    def finish_save(self) -> dict[str, FileEntry]:
        return self.saver.finish()

    @in_phase("start")
    def restore(self, directory: str) -> None:
        self.saver.wait_staged()
        state = self.saved_state()
        load_shards(state, Path(directory))
        for role in self.roles():
            if role.saved:
                role.restore(state[role.name])
        restore_random_state(Path(directory), self.settings.rank, self.settings.world, self.spec.training.seed)

    def saved_state(self) -> dict[str, State]:
        """{role: {model, optimizer}} of each model that checkpoints hold."""
        return {role.name: role.state() for role in self.roles() if role.saved}


def _importance(shard: Shard, version: int, *, bypass: bool) -> ImportanceSums:
    """version: of the policy before the update. bypass: only the first minibatch was scored by it, in its pass.

    A row's own response (spin) was sampled by no engine.
    """
    minibatches = shard.plan.minibatches[:1] if bypass else shard.plan.minibatches
    every = [sample for minibatch in minibatches for samples in shard.passes(minibatch) for sample in samples]
    samples = [sample for sample in every if sample.trajectory.sampled]
    ours, engine = column(samples, "old_log_probs"), column(samples, "engine_log_probs")
    versions = [each.trajectory.versions[each.trajectory.in_loss] for each in samples]
    present = np.concatenate(versions or [np.zeros(0, np.int32)]) == version
    return importance_sums(ours.numpy(), engine.numpy(), present)


def _grouped(log_probs: Sequence[Floats], sizes: Sequence[int]) -> list[list[Floats]]:
    each = iter(log_probs)
    return [[next(each) for _ in range(size)] for size in sizes]
