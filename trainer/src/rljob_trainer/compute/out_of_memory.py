"""What goes wrong inside a rank or an engine, in terms of the job: not enough memory, and peers that are gone.

Light, because the table of engines has its remedies here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rljob_trainer.errors import InfrastructureError, JobError, RLJobError


@dataclass(frozen=True, slots=True)
class Remedy:
    """The spec's field that governs a use of memory, and what to do about it."""

    field: str
    advice: str


@dataclass(frozen=True, slots=True)
class Remedies:
    """For one kind of work: where the GPU's memory ends, and where the host's does."""

    gpu: Remedy
    host: Remedy


LOADING = Remedies(
    gpu=Remedy("spec.actor.fsdp.offload", "set it to true, or spread the model over more GPUs"),
    host=Remedy("spec.model.path", "rank 0 reads the whole model in float32: give it more memory"),
)
STEPPING = Remedies(
    gpu=Remedy(
        "spec.actor.tokensPerMicroBatch",
        "lower it, set actor.fsdp.offload to true, or lower rollout.gpuMemoryUtilization",
    ),
    host=Remedy("spec.actor.tokensPerMicroBatch", "lower it, or give the ranks more memory"),
)
SENDING = Remedies(
    gpu=Remedy("spec.rollout.gpuMemoryUtilization", "lower it, or lower rollout.weightSync.bucketMib"),
    host=Remedy("spec.rollout.weightSync.bucketMib", "lower it, or give the ranks more memory"),
)
_HOST_ALLOCATOR = "DefaultCPUAllocator"
"""torch reports a host allocation that failed as a plain RuntimeError with this name in it."""

_GPU_ALLOCATORS = ("CUDA out of memory", "CUDA Error: out of memory")
"""So begin torch's error, which vLLM repeats as text where a worker process had it, and that of vLLM's sleep mode."""


@contextmanager
def explained(remedies: Remedies) -> Iterator[None]:
    """Raises JobError with the remedy where memory ran out, InfrastructureError where a collective lost a rank."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        known = _explanation(error, remedies)
        if known is None:
            raise
        raise known from error


def _explanation(error: Exception, remedies: Remedies) -> RLJobError | None:
    import torch
    import torch.distributed as dist

    text = str(error)
    if isinstance(error, torch.OutOfMemoryError) or any(words in text for words in _GPU_ALLOCATORS):
        return JobError(f"the GPU's memory did not suffice: {remedies.gpu.advice}", field=remedies.gpu.field)
    if isinstance(error, MemoryError) or _HOST_ALLOCATOR in text:
        return JobError(f"the host's memory did not suffice: {remedies.host.advice}", field=remedies.host.field)
    if isinstance(error, dist.DistError) or "gloo" in text:
        return InfrastructureError(f"a rank lost the others: {text.strip().splitlines()[0]}")
    return None
