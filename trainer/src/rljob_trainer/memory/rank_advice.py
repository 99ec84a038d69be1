"""Which field helps a rank that ran out of GPU memory most, and which value of it. Pure."""

from typing import Literal

from rljob_api import ResolvedSpec
from rljob_trainer.errors import JobError
from rljob_trainer.memory.explained import Remedy
from rljob_trainer.memory.held import GIB, Held
from rljob_trainer.memory.shares import below, lowered

RankPhase = Literal["start", "update", "weight sync", "checkpoint"]

REST = "activations and temporary tensors"
"""What a rank has allocated besides weights, gradients and optimizer."""

_MOSTLY = 0.8
"""Share of the GPU that weights, gradients and optimizer may take before fewer tokens a pass cannot help."""

_CONTEXT = GIB
"""CUDA context of a rank or an engine, and what the engine keeps while it sleeps."""

_SMALL_BUCKET = 64
"""MiB of a bucket below which smaller ones save nothing that matters."""

HOST: dict[RankPhase, Remedy] = {
    "start": Remedy("spec.model.path", "give rank 0, which reads the whole model in float32, more memory"),
    "update": Remedy("spec.actor.tokensPerMicroBatch", "lower it, or give the ranks more memory"),
    "weight sync": Remedy("spec.rollout.weightSync.bucketMib", "lower it, or give the ranks more memory"),
    "checkpoint": Remedy(
        "spec.cluster.worker.memory", "raise it: a checkpoint is copied to the host before it is saved"
    ),
}
"""For host memory."""


def rank_error(phase: RankPhase, held: Held, spec: ResolvedSpec) -> JobError:
    """The error of a rank whose GPU ran out of memory in `phase`."""
    remedy = rank_remedy(phase, held, spec)
    known = f" ({held})" if str(held) else ""
    return JobError(f"the GPU ran out of memory in the {phase}{known}: {remedy.advice}", field=remedy.field)


def rank_remedy(phase: RankPhase, held: Held, spec: ResolvedSpec) -> Remedy:
    """The field that helps most. held: with the parts that rank.memory measures."""
    kept = sum(size for name, size in held.parts.items() if name != REST)
    if phase == "weight sync":
        return _smaller_engine(held, kept, spec)
    if phase == "update" and not (held.total and kept + held.wanted > _MOSTLY * held.total):
        return _fewer_activations(spec)
    return _fewer_shards(spec)


def _fewer_activations(spec: ResolvedSpec) -> Remedy:
    actor, longest = spec.actor, spec.longest_sample
    if actor.recompute == "none":
        return Remedy("spec.actor.recompute", "set it to layer")
    half = max(-(-actor.tokens_per_micro_batch // 2048) * 1024, longest)
    if half < actor.tokens_per_micro_batch:
        return Remedy("spec.actor.tokensPerMicroBatch", f"lower it from {actor.tokens_per_micro_batch} to {half}")
    return _fewer_shards(spec)


def _fewer_shards(spec: ResolvedSpec) -> Remedy:
    further = {"none": "optimizer", "parameters": "all", "optimizer": "all"}.get(spec.actor.fsdp.offload)
    if further is not None:
        return Remedy("spec.actor.fsdp.offload", f"set it to {further}, or spread the model over more GPUs")
    return Remedy("spec.cluster.gpusPerNode", "spread the model over more GPUs: raise it, or cluster.nodes")


def _smaller_engine(held: Held, kept: int, spec: ResolvedSpec) -> Remedy:
    """The engines' share is what the rank leaves; then the buckets; then what the rank keeps."""
    rollout = spec.rollout
    if not held.total:
        return Remedy("spec.rollout.gpuMemoryUtilization", "lower it, or lower rollout.weightSync.bucketMib")
    buckets = 2 * rollout.weight_sync.bucket_mib << 20
    contexts = (1 + rollout.engines_per_gpu) * _CONTEXT
    share = below((held.total - kept - buckets - held.wanted - contexts) / held.total)
    if 0 < share < rollout.gpu_memory_utilization:
        return Remedy("spec.rollout.gpuMemoryUtilization", lowered(rollout.gpu_memory_utilization, share))
    if rollout.weight_sync.bucket_mib > _SMALL_BUCKET:
        return Remedy(
            "spec.rollout.weightSync.bucketMib", f"lower it from {rollout.weight_sync.bucket_mib} to {_SMALL_BUCKET}"
        )
    return _fewer_shards(spec)
