"""Which field helps a rollout engine that ran out of GPU memory most, and which value of it. Pure."""

import re
from typing import Literal

from rljob_trainer.engines.engine import EngineSettings
from rljob_trainer.errors import JobError
from rljob_trainer.memory.explained import Remedy
from rljob_trainer.memory.held import GIB, Held
from rljob_trainer.memory.shares import above, below, lowered, raised

EnginePhase = Literal["start", "rollout", "weight sync"]

REST = "activations, KV cache and graphs"
"""What an engine has allocated besides the parts that it can name."""

HOST = Remedy("spec.rollout.maxNumSeqs", "lower it, or lower data.maxResponseTokens, or give the engine more memory")
"""For host memory."""

_SHARE, _SEQUENCES = "spec.rollout.gpuMemoryUtilization", "spec.rollout.maxNumSeqs"

_MARGIN = GIB
"""What an engine needs beside its share: its CUDA context, and kernels' workspaces."""

_TOO_FULL = re.compile(r"Free memory on device .*?\(([\d.]+)/([\d.]+) GiB\)", re.DOTALL)
_CACHE_TOO_SMALL = re.compile(r"([\d.]+) GiB KV\s+cache is needed.*?\(([\d.]+) GiB\)", re.DOTALL)
"""What vLLM says as it starts. https://github.com/vllm-project/vllm/blob/main/vllm/v1/core/kv_cache_utils.py"""


def engine_error(phase: EnginePhase, held: Held, settings: EngineSettings) -> JobError:
    """The error of an engine whose GPU ran out of memory in `phase`."""
    remedy = engine_remedy(phase, held, settings)
    known = f" ({held})" if str(held) else ""
    return JobError(
        f"the GPU ran out of memory in the {phase} of the engine{known}: {remedy.advice}", field=remedy.field
    )


def engine_remedy(phase: EnginePhase, held: Held, settings: EngineSettings) -> Remedy:
    """The field that helps most. In a sync the KV cache lacks what the trainer still holds; else activations do."""
    if settings.kind == "hf":
        return _fewer_sequences(settings)
    present, engines = settings.gpu_memory_utilization, settings.engines_per_gpu
    if not held.total:
        return Remedy(_SHARE, "lower it, or lower data.maxResponseTokens or rollout.maxNumSeqs")
    if phase == "weight sync":
        share = below(engines * (held.total - held.others - _MARGIN) / held.total)
    else:
        lacking = engines * (held.wanted - held.free + _MARGIN)
        share = below(min(present - lacking / held.total, present - 0.05))
    if not share:
        return _fewer_sequences(settings)
    return Remedy(_SHARE, lowered(present, min(share, below(present - 0.05) or share)))


def _fewer_sequences(settings: EngineSettings) -> Remedy:
    if settings.max_num_seqs == 1:
        return Remedy("spec.data.maxResponseTokens", "lower it, or train on a GPU with more memory")
    return Remedy(_SEQUENCES, f"lower it from {settings.max_num_seqs} to {max(settings.max_num_seqs // 2, 1)}")


def start_error(text: str, total: int, settings: EngineSettings) -> JobError:
    """The error of vLLM, which measures the GPU as it starts. text: its own words. total: of the GPU, 0 if unknown."""
    remedy = _start_remedy(text, total, settings)
    share = f"{settings.gpu_memory_utilization / settings.engines_per_gpu:.0%}"
    return JobError(f"vLLM does not fit into {share} of the memory ({text}): {remedy.advice}", field=remedy.field)


def _start_remedy(text: str, total: int, settings: EngineSettings) -> Remedy:
    present, engines = settings.gpu_memory_utilization, settings.engines_per_gpu
    if found := _TOO_FULL.search(text):
        share = below(engines * float(found[1]) / float(found[2]))
        return Remedy(_SHARE, lowered(present, share) if share else "end what else uses this GPU")
    found = _CACHE_TOO_SMALL.search(text)
    lacking = float(found[1]) - float(found[2]) if found else 1.0
    share = above(present + engines * lacking * GIB / total) if total else 0.0
    if share:
        return Remedy(_SHARE, raised(present, share))
    if engines > 1:
        return Remedy("spec.rollout.enginesPerGpu", f"lower it to {engines - 1}")
    return Remedy(_SHARE, "raise it, or lower spec.data.maxResponseTokens or spec.rollout.maxNumSeqs")
