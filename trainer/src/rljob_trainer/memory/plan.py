"""Whether a job fits a GPU, in which phase it does not, and which value of which field would do. Pure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rljob_trainer.memory.explained import Remedy
from rljob_trainer.memory.model import ModelSize
from rljob_trainer.memory.phases import Parts, cached_tokens, phases
from rljob_trainer.memory.work import Work

_SHARE, _ENGINES = "spec.rollout.gpuMemoryUtilization", "spec.rollout.enginesPerGpu"

_TOKENS = "spec.actor.tokensPerMicroBatch"

START = "start"
"""The start of an engine: vLLM then wants its whole share, however small the KV cache that it takes in the end."""

_HOST_BOUND = 2_000_000_000
"""Parameters below which a step of the model takes a GPU less time than one thread of Python needs to prepare it:
measured at 0.5B and 1.5B on an H200 (docs/benchmarks/gpu.md)."""

_SHARES = tuple(step / 20 for step in range(19, 0, -1))
"""Values of gpuMemoryUtilization, the largest first."""


@dataclass(frozen=True, slots=True)
class TooMuch:
    """What does not fit: a phase, START or the KV cache. needed: bytes."""

    phase: str
    needed: int
    remedy: Remedy


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """One GPU of a job. gpu: its bytes. phases: parts by phase. too_much: the phases that do not fit.

    cached: tokens that one engine's KV cache holds; None without an engine.
    """

    size: ModelSize
    work: Work
    gpu: int
    phases: Mapping[str, Parts]
    too_much: tuple[TooMuch, ...]
    cached: int | None

    @property
    def peaks(self) -> dict[str, int]:
        """Bytes of each phase."""
        return {name: sum(parts.values()) for name, parts in self.phases.items()}

    def as_json(self) -> dict[str, Any]:
        return {
            "gpuBytes": self.gpu,
            "parameters": self.size.parameters,
            "adapter": self.size.adapter,
            "phases": {name: {"bytes": self.peaks[name], "parts": parts} for name, parts in self.phases.items()},
            "cachedTokens": self.cached,
            "faster": {"field": more.field, "remedy": more.advice} if (more := second_engine(self)) else None,
            "tooMuch": [
                {"phase": each.phase, "bytes": each.needed, "field": each.remedy.field, "remedy": each.remedy.advice}
                for each in self.too_much
            ],
        }


def plan(size: ModelSize, work: Work, gpu: int) -> MemoryPlan:
    """gpu: bytes of one GPU."""
    found = phases(size, work, gpu)
    cached = cached_tokens(size, work, found["rollout"]) if work.engines else None
    return MemoryPlan(size, work, gpu, found, tuple(_too_much(size, work, gpu, found, cached)), cached)


def second_engine(one: MemoryPlan) -> Remedy | None:
    """The field that adds a second engine, if that generates faster and fits with as large a KV cache."""
    work = one.work
    if one.too_much or one.cached is None or not work.share or work.engines > 1 or work.tensor_parallel > 1:
        return None
    if one.size.parameters >= _HOST_BOUND:
        return None
    two = plan(one.size, replace(work, engines=2), one.gpu)
    fits = not two.too_much and two.cached is not None and two.cached >= one.cached
    return Remedy(_ENGINES, "set it to 2") if fits else None


def _too_much(
    size: ModelSize, work: Work, gpu: int, found: Mapping[str, Parts], cached: int | None
) -> Iterator[TooMuch]:
    if cached is not None and work.share and cached < work.longest:
        cache = work.engines * size.kv.on_gpu(work.tensor_parallel) * work.longest
        needed = found["rollout"]["engine's weights"] + cache
        yield TooMuch("KV cache", needed, _for_cache(size, work, gpu))
    sizes = {name: sum(parts.values()) for name, parts in found.items()}
    if "rollout" in sizes and sizes["rollout"] <= gpu:
        sizes = {START: _at_start(size, work, gpu), **sizes}
    for phase, nbytes in sizes.items():
        if nbytes > gpu:
            remedy = _for_update if phase == "update" else _for_engine
            yield TooMuch(phase, nbytes, remedy(size, work, gpu))


def _at_start(size: ModelSize, work: Work, gpu: int) -> int:
    return sum(phases(size, replace(work, whole_share=True), gpu)["rollout"].values())


def _needed(size: ModelSize, work: Work, gpu: int, phase: str) -> int:
    """Bytes that must be free in a phase, and before a rollout as an engine starts."""
    needed = sum(phases(size, work, gpu)[phase].values())
    return max(needed, _at_start(size, work, gpu)) if phase == "rollout" else needed


def _fits(size: ModelSize, gpu: int, *names: str) -> Callable[[Work], bool]:
    return lambda work: all(_needed(size, work, gpu, name) <= gpu for name in names)


def _for_update(size: ModelSize, work: Work, gpu: int) -> Remedy:
    """Recomputation before passes of less than half of their tokens, which take longer."""
    fits = _fits(size, gpu, "update")
    smaller = (replace(work, tokens=tokens, accumulates=True) for tokens in _multiples(work.tokens, work.longest))
    fitting = next(filter(fits, smaller), None)
    if (
        not work.recompute
        and (fitting is None or 2 * fitting.tokens < work.tokens)
        and fits(replace(work, recompute=True))
    ):
        return Remedy("spec.actor.recompute", "set it to layer")
    return Remedy(_TOKENS, f"lower it to {fitting.tokens}") if fitting else _for_shards(size, work, gpu, "update")


def _multiples(below: int, least: int) -> Iterator[int]:
    """Of 1024, the largest first, then `least`."""
    yield from range((below - 1) // 1024 * 1024, least, -1024)
    if least < below:
        yield least


def _for_shards(size: ModelSize, work: Work, gpu: int, *phases: str) -> Remedy:
    """For phases that no other value makes fit: with the smallest passes, recomputation and the smallest engine."""
    fits = _fits(size, gpu, *phases)
    least = replace(work, tokens=work.longest, recompute=True, accumulates=True)
    shares = [share for share in _SHARES if share <= work.share] or [work.share]
    for kind, weights in (("optimizer", False), ("all", True)):
        offloaded = replace(least, host_optimizer=True, host_weights=weights or work.host_weights)
        changes = (work.host_optimizer, work.host_weights) != (True, offloaded.host_weights)
        if changes and any(fits(replace(offloaded, share=share)) for share in shares):
            named = "all" if offloaded.host_weights else kind
            return Remedy("spec.actor.fsdp.offload", f"spread the model over more GPUs, or set it to {named}")
    return Remedy("spec.cluster.gpusPerNode", "spread the model over more GPUs: raise it, or cluster.nodes")


def _for_engine(size: ModelSize, work: Work, gpu: int) -> Remedy:
    fits = _fits(size, gpu, "rollout", "sync")
    for share in _SHARES:
        smaller = replace(work, share=share)
        if 0 < share < work.share and fits(smaller) and not _lacks_cache(size, smaller, gpu):
            return Remedy(_SHARE, f"lower it to {share:g}")
    if fewer := _fewer_engines(work, lambda less: fits(less) and not _lacks_cache(size, less, gpu)):
        return fewer
    if not work.share:
        return Remedy("spec.rollout.maxNumSeqs", "lower it")
    return _for_shards(size, work, gpu, "rollout", "sync")


def _for_cache(size: ModelSize, work: Work, gpu: int) -> Remedy:
    for share in reversed(_SHARES):
        if share > work.share and not _lacks_cache(size, replace(work, share=share), gpu):
            return Remedy(_SHARE, f"raise it to {share:g}")
    if fewer := _fewer_engines(work, lambda less: not _lacks_cache(size, less, gpu)):
        return fewer
    return Remedy("spec.rollout.tensorParallelSize", "raise it, or lower data.maxResponseTokens")


def _fewer_engines(work: Work, enough: Callable[[Work], bool]) -> Remedy | None:
    """As many as still do."""
    counts = range(work.engines - 1, 0, -1)
    found = next((count for count in counts if enough(replace(work, engines=count))), None)
    return Remedy(_ENGINES, f"lower it to {found}") if found else None


def _lacks_cache(size: ModelSize, work: Work, gpu: int) -> bool:
    return cached_tokens(size, work, phases(size, work, gpu)["rollout"]) < work.longest
