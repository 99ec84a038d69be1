"""`spec.rollout.engineArguments`: arguments of vLLM that the API does not name, checked against vLLM's own list."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import Enum
from importlib.util import find_spec
from typing import Any, get_args

from rljob_api.validation.suggest import closest
from rljob_trainer.errors import JobError

FIELD = "spec.rollout.engineArguments"

_OF_FIELDS = {
    "model.path": ("model", "model_weights", "tokenizer", "hf_config_path", "hf_overrides", "served_model_name"),
    "model.revision": ("revision", "code_revision", "tokenizer_revision"),
    "model.dtype": ("dtype",),
    "model.trustRemoteCode": ("trust_remote_code",),
    "data.maxPromptTokens and data.maxResponseTokens": ("max_model_len",),
    "rollout.seed": ("seed",),
    "rollout.temperature, rollout.topP and rollout.topK": ("generation_config", "override_generation_config"),
    "rollout.maxNumSeqs": ("max_num_seqs", "max_num_active_seqs"),
    "rollout.tensorParallelSize": (
        "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "prefill_context_parallel_size",
        "decode_context_parallel_size", "nnodes", "device_ids",
    ),
    "rollout.gpuMemoryUtilization": ("gpu_memory_utilization", "kv_cache_memory_bytes", "num_gpu_blocks_override"),
    "rollout.enforceEager": ("enforce_eager",),
    "rollout.quantization": ("quantization", "quantization_config"),
    "model.lora": (
        "enable_lora", "max_loras", "max_lora_rank", "max_cpu_loras", "lora_dtype", "lora_target_modules",
        "default_mm_loras",
    ),
}  # fmt: skip
"""Fields of the API, and the arguments of vLLM that would contradict them."""

_REASONS = {
    "the trainer sends the weights, in their own type, after each update": (
        "load_format", "weight_transfer_config", "pt_load_map_location",
    ),
    "the trainer decides when an engine gives its memory back": (
        "enable_sleep_mode", "enable_cumem_allocator", "sleep_preserve_parameter_names",
    ),
    "the trainer needs the log-probability of each sampled token, in one form": (
        "logprobs_mode", "logits_processors", "speculative_config", "spec_method", "spec_model", "spec_tokens",
        "diffusion_config", "return_sampling_mask", "watermark_config",
    ),
    "an engine forgets what it cached at each update, and other stores would keep keys and values of old weights": (
        "kv_offloading_size", "kv_offloading_backend", "kv_transfer_config",
    ),
    "the trainer starts an engine's processes on the GPUs that it holds": ("distributed_executor_backend",),
    "the trainer passes token ids, and reads token ids": ("runner", "convert", "enable_prompt_embeds", "pooler_config"),
    "engines read a folder of the run, and trackers are sent the settings": ("hf_token",),
    "the trainer extends vLLM's worker and scheduler": ("worker_cls", "worker_extension_cls", "scheduler_cls"),
}  # fmt: skip
"""Why no job may set these arguments."""

_REFUSED = {
    **{name: f"set {field} instead" for field, names in _OF_FIELDS.items() for name in names},
    **{name: f"{reason}: remove it" for reason, names in _REASONS.items() for name in names},
}


def argument_errors(arguments: Mapping[str, Any]) -> Iterator[JobError]:
    """An error for each argument that contradicts the API, and, if vLLM is installed, that it does not take.

    vLLM is imported in another process (seconds): it would stay in this one, and so would its environment.
    """
    others = {name: value for name, value in arguments.items() if name not in _REFUSED}
    found = {name: _REFUSED[name] for name in arguments if name in _REFUSED}
    if others and find_spec("vllm") is not None:
        found |= _asked_elsewhere(others)
    for name in arguments:
        if name in found:
            yield JobError(found[name], field=f"{FIELD}.{name}")


def parsed(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments in the types of vLLM's EngineArgs, which this process imports.

    Raises JobError for the first that contradicts the API or that vLLM does not take.
    """
    taken = _taken() if arguments else {}
    wrong = problems(arguments, taken) | {name: _REFUSED[name] for name in arguments if name in _REFUSED}
    for name, problem in wrong.items():
        raise JobError(problem, field=f"{FIELD}.{name}")
    return {name: _value(taken[name], value) for name, value in arguments.items()}


def problems(arguments: Mapping[str, Any], taken: Mapping[str, Any]) -> dict[str, str]:
    """What is wrong with arguments, by name. taken: the type of each argument that vLLM takes."""
    found = {name: _problem(name, value, taken) for name, value in arguments.items()}
    return {name: problem for name, problem in found.items() if problem is not None}


def _problem(name: str, value: Any, taken: Mapping[str, Any]) -> str | None:
    from pydantic import ValidationError
    from vllm import __version__

    if name not in taken:
        meant = closest(name, list(taken))
        remedy = f"write {meant}, or remove it" if meant else "remove it"
        return f"vLLM {__version__} has no argument of this name: {remedy}"
    try:
        _value(taken[name], value)
    except ValidationError as error:
        reason = error.errors(include_url=False, include_context=False, include_input=False)[0]["msg"]
        return f"vLLM {__version__} does not take {json.dumps(value)} ({reason}): correct it, or remove it"
    return None


def _value(wanted: Any, value: Any) -> Any:
    """`value`, which came from JSON, in the type of an argument. Raises pydantic's ValidationError.

    An enumeration is written by the names of its members, as on vLLM's command line. vLLM itself judges values of a
    type that names a class which it imports for type checkers only.
    """
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter

    if isinstance(wanted, str):
        return value
    for kind in (wanted, *get_args(wanted)):
        if isinstance(value, str) and isinstance(kind, type) and issubclass(kind, Enum) and value in kind.__members__:
            return kind[value]
    try:
        adapter = TypeAdapter(wanted)
    except PydanticUserError:  # a class of torch's or vLLM's without a schema
        adapter = TypeAdapter(wanted, config=ConfigDict(arbitrary_types_allowed=True))
    return adapter.validate_json(json.dumps(value), strict=True)


def _taken() -> dict[str, Any]:
    from vllm.engine.arg_utils import EngineArgs

    return {each.name: each.type for each in fields(EngineArgs) if not each.name.startswith("_")}


def _asked_elsewhere(arguments: Mapping[str, Any]) -> dict[str, str]:
    """`problems` of a process that imports vLLM. Raises JobError if vLLM cannot be imported."""
    asked = subprocess.run(
        [sys.executable, "-m", __name__], input=json.dumps(arguments), capture_output=True, text=True, check=False,
        env=os.environ | {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"},
    )  # fmt: skip
    if asked.returncode != 0:
        reason = asked.stderr.strip().splitlines()[-1:] or [f"exit code {asked.returncode}"]
        raise JobError(f"vLLM cannot be imported ({reason[0]}): install it again", field="spec.rollout.engine")
    answer: dict[str, str] = json.loads(asked.stdout.splitlines()[-1])
    return answer


if __name__ == "__main__":
    print(json.dumps(problems(json.load(sys.stdin), _taken())))
