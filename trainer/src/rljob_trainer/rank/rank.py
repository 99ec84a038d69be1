"""One rank of the trainer: the class that a Ray worker wraps. The controller calls every rank alike.

    open_store (rank 0) -> connect -> load -> begin_stage -> [supervised_step ...]
                                           -> begin_stage -> [prepare -> update -> send_weights -> score_probes ...]

begin_save returns at once; whatever would change the state it saves waits until that has been copied (saver.py).
prepare and update are two calls because the controller computes advantages in between, from metadata alone.
"""

import datetime
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from rljob_api import ResolvedSpec
from rljob_trainer.checkpoint.files import FileEntry
from rljob_trainer.checkpoint.random_state import restore_random_state
from rljob_trainer.checkpoint.saver import ShardSaver
from rljob_trainer.checkpoint.shards import load_shards
from rljob_trainer.compute.dtypes import compute_dtype
from rljob_trainer.compute.freed_memory import keep_freed_memory
from rljob_trainer.compute.out_of_memory import LOADING, SENDING, STEPPING, explained
from rljob_trainer.errors import InfrastructureError
from rljob_trainer.losses.diagnostics import ImportanceSums, importance_sums
from rljob_trainer.losses.kl import kl_estimate
from rljob_trainer.losses.totals import BatchTotals
from rljob_trainer.old_types import Floats, Group, Ids
from rljob_trainer.progress.metrics import Stage
from rljob_trainer.rank.forward import Policy, check_packing, score_only
from rljob_trainer.rank.packing import pack
from rljob_trainer.rank.plan import RankPlan
from rljob_trainer.rank.results import Prepared, Sent, StepSums, Updated
from rljob_trainer.rank.sequence import TokenSequence
from rljob_trainer.rank.settings import RankSettings
from rljob_trainer.rank.shard import Shard, column, response_lengths, shard_of_groups, shard_of_sequences
from rljob_trainer.rank.sharding import COMPUTE_DTYPES, copy_weights, load_initial_weights, sharded_policy
from rljob_trainer.rank.step import Trainee, policy_step, score_samples, supervised_step
from rljob_trainer.rank.training_state import RankState, TrainingState
from rljob_trainer.weights.bucket import BucketDescriptor
from rljob_trainer.weights.sender import WeightSender
from rljob_trainer.workers.waiting import wait_for_engines

if TYPE_CHECKING:
    from rljob_trainer.workers.roster import Worker


class Rank:
    """Holds one shard of policy, optimizer and reference."""

    def __init__(self, spec: ResolvedSpec, settings: RankSettings) -> None:
        self.spec = spec
        self.settings = settings
        self.device = torch.device(settings.device_type)
        self.reference: Policy | None = None
        self._held: RankState | None = None
        self._shard: Shard | None = None
        if settings.device_type == "cpu":
            keep_freed_memory()
            torch.set_num_threads(settings.threads)

    # ------------------------------------------------------------------ start

    def open_store(self, host: str | None = None) -> tuple[str, int]:
        """Rank 0: open the store that all ranks meet at. host: of this rank, as others reach it; by default Ray's."""
        host = host or str(ray.util.get_node_ip_address())
        self.store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        return host, self.store.port

    @explained(LOADING)
    def connect(self, address: tuple[str, int]) -> dict[str, Any]:
        """Join the process group. Returns what a log should say about the rank."""
        timeout = datetime.timedelta(seconds=self.settings.collective_seconds)
        if self.settings.rank > 0:
            self.store = dist.TCPStore(*address, is_master=False, timeout=timeout)
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        rank, world = self.settings.rank, self.settings.world
        dist.init_process_group(backend, store=self.store, rank=rank, world_size=world, timeout=timeout)
        self.mesh = init_device_mesh(self.device.type, (world,))
        self.sync_group, _ = dist.new_subgroups_by_enumeration(
            [list(ranks) for ranks in self.settings.sync_groups], timeout=timeout, backend="gloo"
        )
        self.saver = ShardSaver(self.device, dist.new_group(timeout=timeout, backend="gloo"))
        gpu = torch.cuda.get_device_name() if self.device.type == "cuda" else None
        return {"rank": rank, "host": socket.gethostname(), "pid": os.getpid(), "gpu": gpu}

    def visible_gpu(self) -> str | None:
        """The GPU that this rank owns, as CUDA_VISIBLE_DEVICES names it."""
        return os.environ.get("CUDA_VISIBLE_DEVICES") if self.device.type == "cuda" else None

    @explained(LOADING)
    def load(self, folder: str) -> dict[str, int]:
        """Build the policy with its first weights. Raises DataError or JobError for a model that cannot be trained."""
        self.saver.wait_staged()
        self.folder = Path(folder)
        self.policy = sharded_policy(self.spec, self.folder, self.mesh, trainable=True)
        load_initial_weights(self.policy, self.spec, self.folder, self.mesh)
        dtype = COMPUTE_DTYPES[compute_dtype(self.spec, self.device.type)]
        check_packing(self.policy, self.policy.model.config.vocab_size, self.device, dtype)
        return {"parameters": sum(parameter.numel() for parameter in self.policy.parameters())}

    @explained(LOADING)
    def begin_stage(self, stage: Stage) -> None:
        """A fresh optimizer; for RL also the reference, which is the policy as it is now."""
        self.saver.wait_staged()
        self._held = None
        actor = self.spec.actor
        optimizer = torch.optim.AdamW(
            self.policy.parameters(),
            lr=actor.learning_rate,
            betas=(actor.beta1, actor.beta2),
            weight_decay=actor.weight_decay,
            fused=True,
        )
        self.trainee = Trainee(self.policy, optimizer, self.device, self.settings.world, actor.grad_clip)
        if stage == "rl" and self.spec.needs_reference:
            self.reference = sharded_policy(self.spec, self.folder, self.mesh, trainable=False)
            copy_weights(self.policy, self.reference)
        fixed = self.reference.parameters() if self.reference is not None else ()
        self.saver.reserve([*self.policy.parameters()] * 3 + [*fixed])  # AdamW keeps two moments of each parameter

    # ------------------------------------------------------------------ what it holds, for the next driver

    def hold(self, mark: TrainingState) -> None:
        """The controller says what the weights are, after it has loaded, restored or begun a stage."""
        self._held = RankState(mark)

    def held(self) -> RankState | None:
        """What the weights are; None in the middle of a change, or after one that failed."""
        return self._held

    def collectives(self) -> int:
        """How many collectives this rank has entered, over all its process groups."""
        groups = dist.distributed_c10d._world.pg_map if dist.is_initialized() else ()  # noqa: SLF001  no public way
        return sum(group._get_sequence_number_for_group() for group in groups)  # type: ignore[attr-defined]  # noqa: SLF001

    # ------------------------------------------------------------------ steps

    @explained(STEPPING)
    def supervised_step(
        self,
        plan: RankPlan,
        totals: Sequence[BatchTotals],
        sequences: Sequence[TokenSequence],
        learning_rate: float,
        mark: TrainingState,
    ) -> StepSums:
        self.saver.wait_staged()
        self._held = None
        sums = supervised_step(self.trainee, shard_of_sequences(plan, totals, sequences), learning_rate)
        self._held = RankState(mark, sums)
        return sums

    @explained(STEPPING)
    def prepare(
        self,
        plan: RankPlan,
        totals: Sequence[BatchTotals],
        places: Sequence[tuple[int, int]],
        *bundles: Sequence[Group],
    ) -> Prepared:
        """Take this rank's samples and score them with whatever the algorithm compares against.

        places: (bundle, index in it) of each group of the whole step, in their order.
        bundles: one argument each, so that Ray hands over groups where the caller has references.
        """
        self._shard = None
        shard = shard_of_groups(plan, totals, [bundles[bundle][index] for bundle, index in places])
        temperature = self.spec.rollout.temperature
        if len(totals) * self.spec.actor.epochs > 1 or self.spec.kl_in_reward:
            score_samples(self.policy, shard, temperature, "old_log_probs", self.device)
        if self.reference is not None:
            score_samples(self.reference, shard, temperature, "reference_log_probs", self.device)
        self._shard = shard
        return Prepared(self._token_kl(shard) if self.spec.kl_in_reward else None)

    def _token_kl(self, shard: Shard) -> list[Floats]:
        samples, estimator = shard.ordered, self.spec.algorithm.kl.estimator
        flat = kl_estimate(estimator, column(samples, "old_log_probs"), column(samples, "reference_log_probs"))
        return np.split(flat.numpy(), np.cumsum(response_lengths(samples))[:-1]) if samples else []

    @explained(STEPPING)
    def update(
        self, advantages: Sequence[Floats], learning_rate: float, kl_coefficient: float, mark: TrainingState
    ) -> Updated:
        """Train on the prepared shard, once. advantages: [R] for each sample in the order of the rank's plan.

        Raises InfrastructureError where nothing is prepared: Ray leaves out a `prepare` whose groups are lost, and
        calls this all the same.
        """
        self.saver.wait_staged()
        shard, self._shard, self._held = self._shard, None, None
        if shard is None:
            raise InfrastructureError("no groups are prepared for this update")
        for sample, advantage in zip(shard.ordered, advantages, strict=True):
            sample.advantages = advantage
        sums = policy_step(self.trainee, shard, self.spec, learning_rate, kl_coefficient)
        updated = Updated(sums, self._importance(shard))
        self._held = RankState(mark, updated)
        return updated

    def _importance(self, shard: Shard) -> ImportanceSums:
        samples = shard.ordered
        ours, engine = column(samples, "old_log_probs"), column(samples, "engine_log_probs")
        return importance_sums(ours.numpy(), engine.numpy())

    @explained(STEPPING)
    def log_probs(self, sequences: Sequence[TokenSequence], temperature: float) -> list[Floats]:
        """Log-probabilities [R] of each sequence's response; every rank computes all of them."""
        batch = pack(sequences, self.device)
        flat = score_only(self.policy, batch, temperature)
        return np.split(flat.cpu().numpy(), np.cumsum(batch.response_lengths)[:-1])

    # ------------------------------------------------------------------ weights

    @explained(SENDING)
    def send_weights(
        self, engines: Sequence["Worker"], version: int, prompts: Sequence[Ids], max_tokens: int, deadline: float,
        *_updated: Updated,
    ) -> Sent:  # fmt: skip
        """Send the policy to the engines that this rank's sync group feeds, and have them answer the probe with it.

        Collective over all ranks. prompts, max_tokens: of the probe (RolloutWorker.complete_update).
        deadline: seconds for each answer of an engine. updated: what all ranks said of the update that makes the
        version; where one of them failed, Ray calls this on none.
        Raises EngineLost for an engine that fails.
        """
        dtype = compute_dtype(self.spec, self.device.type)
        sender = WeightSender(self.device.type, dtype, self.spec.rollout.weight_sync.bucket_mib << 20, self.sync_group)

        begun = [(engine, engine.call("begin_update", version)) for engine in engines]  # while the first is packed

        def deliver(bucket: BucketDescriptor) -> Any:
            asked = [*begun, *((engine, engine.call("load_bucket", bucket)) for engine in engines)]
            begun.clear()
            return lambda: wait_for_engines(asked, deadline, f"copy weight bucket {bucket.index}")

        nbytes = sender.send(self._full_tensors(COMPUTE_DTYPES[dtype]), version, deliver)
        # Only now: an engine takes the memory of its KV cache, which may be what the buckets of all its ranks had.
        dist.barrier(self.sync_group)
        completing = [(engine, engine.call("complete_update", version, prompts, max_tokens)) for engine in engines]
        return Sent(nbytes, wait_for_engines(completing, deadline, "complete its update"))

    @explained(STEPPING)
    def score_probes(self, prompts: Sequence[Ids], *sent: Sent) -> list[list[Floats]]:
        """The log-probabilities [R] of what each engine answered to the probe; every rank computes all of them.

        sent: of every rank, in their order.
        """
        answers = [answer for each in sent for answer in each.answers]
        sequences = [
            TokenSequence(np.concatenate([prompt, each.token_ids]), len(prompt))
            for answer in answers
            for prompt, each in zip(prompts, answer, strict=True)
        ]
        ours = iter(self.log_probs(sequences, 1.0))
        return [[next(ours) for _ in answer] for answer in answers]

    def _full_tensors(self, dtype: torch.dtype) -> Any:
        """Cast before gathering: half the bytes cross between ranks."""
        for name, parameter in self.policy.model.named_parameters():
            tensor = parameter.detach().to(self.device, dtype)
            yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    # ------------------------------------------------------------------ checkpoints

    @explained(LOADING)
    def begin_save(self, directory: str) -> None:
        """Start to write this rank's part of a checkpoint, in a thread of its own; collective over all ranks."""
        self.saver.begin(self._state(), Path(directory))

    @explained(LOADING)
    def finish_save(self) -> dict[str, FileEntry]:
        """Wait for it, from any thread. Returns what this rank wrote, by file name. Raises what the writing raised."""
        return self.saver.finish()

    @explained(LOADING)
    def restore(self, directory: str) -> None:
        """Read the shards of a checkpoint that any number of ranks wrote; collective over all ranks."""
        self.saver.wait_staged()
        state = self._state()
        load_shards(state, Path(directory))
        set_state_dict(
            self.policy.model, self.trainee.optimizer,
            model_state_dict=state["model"], optim_state_dict=state["optimizer"],
        )  # fmt: skip
        restore_random_state(Path(directory), self.settings.rank, self.settings.world, self.spec.training.seed)

    def _state(self) -> dict[str, Any]:
        """Tensors are this rank's own shards, not copies; the reference needs no more than to have them read."""
        model, optimizer = get_state_dict(self.policy.model, self.trainee.optimizer)
        state = {"model": model, "optimizer": optimizer}
        if self.reference is not None:
            state["reference"] = self.reference.model.state_dict()
        return state
