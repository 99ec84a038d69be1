"""Map errors inside a rank or an engine to job errors: out of memory, and lost peers. Light."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rljob_trainer.errors import InfrastructureError, JobError, RLJobError


@dataclass(frozen=True, slots=True)
class Remedy:
    """The spec field that controls a use of memory, and what to do."""

    field: str
    advice: str


@dataclass(frozen=True, slots=True)
class Remedies:
    """What to do if one kind of work runs out of GPU memory or host memory."""

    gpu: Remedy
    host: Remedy


LOADING = Remedies(
    gpu=Remedy("spec.actor.fsdp.offload", "set it to all, or spread the model over more GPUs"),
    host=Remedy("spec.model.path", "give rank 0, which reads the whole model in float32, more memory"),
)
STEPPING = Remedies(
    gpu=Remedy(
        "spec.actor.tokensPerMicroBatch",
        "lower it, set actor.recompute to layer or actor.fsdp.offload to optimizer, or lower"
        " rollout.gpuMemoryUtilization",
    ),
    host=Remedy("spec.actor.tokensPerMicroBatch", "lower it, or give the ranks more memory"),
)
SENDING = Remedies(
    gpu=Remedy("spec.rollout.gpuMemoryUtilization", "lower it, or lower rollout.weightSync.bucketMib"),
    host=Remedy("spec.rollout.weightSync.bucketMib", "lower it, or give the ranks more memory"),
)
_HOST_ALLOCATOR = "DefaultCPUAllocator"
"""torch raises a RuntimeError with this name after a failed host allocation."""

_GPU_ALLOCATORS = ("CUDA out of memory", "CUDA Error: out of memory")
"""Texts of torch's error, which vLLM repeats for its worker processes, and of the error of vLLM's sleep mode."""


@contextmanager
def explained(remedies: Remedies) -> Iterator[None]:
    """Raise JobError with the remedy if memory runs out, InfrastructureError if a collective loses a rank."""
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
        return JobError(f"the GPU ran out of memory; {remedies.gpu.advice}", field=remedies.gpu.field)
    if isinstance(error, MemoryError) or _HOST_ALLOCATOR in text:
        return JobError(f"the host ran out of memory; {remedies.host.advice}", field=remedies.host.field)
    if isinstance(error, dist.DistError) or "gloo" in text:
        return InfrastructureError(f"a rank lost its connection to the others: {text.strip().splitlines()[0]}")
    return None
