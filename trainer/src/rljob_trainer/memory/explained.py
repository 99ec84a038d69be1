"""Map errors inside a rank or an engine to job errors: out of memory, and lost peers. Light."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rljob_trainer.errors import InfrastructureError, JobError, RLJobError


@dataclass(frozen=True, slots=True)
class Remedy:
    """The spec field that controls a use of memory, and what to do."""

    field: str
    advice: str


_HOST_ALLOCATOR = "DefaultCPUAllocator"
"""torch raises a RuntimeError with this name after a failed host allocation."""

_GPU_ALLOCATORS = ("CUDA out of memory", "CUDA Error: out of memory")
"""Texts of torch's error, which vLLM repeats for its worker processes, and of the error of vLLM's sleep mode."""


@contextmanager
def explained(gpu: Callable[[str], JobError], host: Remedy) -> Iterator[None]:
    """Raise JobError with the remedy if memory runs out, InfrastructureError if a collective loses a rank.

    gpu: makes the error of a GPU from the text of the allocator's. host: the remedy for host memory.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        known = _explanation(error, gpu, host)
        if known is None:
            raise
        raise known from error


def _explanation(error: Exception, gpu: Callable[[str], JobError], host: Remedy) -> RLJobError | None:
    import torch
    import torch.distributed as dist

    text = str(error)
    if isinstance(error, torch.OutOfMemoryError) or any(words in text for words in _GPU_ALLOCATORS):
        return gpu(text)
    if isinstance(error, MemoryError) or _HOST_ALLOCATOR in text:
        return JobError(f"the host ran out of memory; {host.advice}", field=host.field)
    if isinstance(error, dist.DistError) or "gloo" in text:
        return InfrastructureError(f"a rank lost its connection to the others: {text.strip().splitlines()[0]}")
    return None
