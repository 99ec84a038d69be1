"""The server of a reward model: what `rljob run` starts here and the operator in a cluster."""

from collections.abc import Mapping
from typing import Final

from rljob_api.v1alpha1 import RewardModel

HEALTH: Final = "/health"
"""Answers with 200 while the model is loaded and works."""

ENVIRONMENT: Final[Mapping[str, str]] = {"VLLM_NO_USAGE_STATS": "1"}
CPU_ENVIRONMENT: Final[Mapping[str, str]] = {
    "TORCHDYNAMO_DISABLE": "1",  # what it would compile takes a C++ compiler and longer than it saves
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # binding gives each process of a machine the same cores
}


_MODULE: Final = ("-m", "vllm.entrypoints.openai.api_server")
"""What `vllm serve` runs; that command itself looks for a distribution named vllm, and so fails in vLLM's CPU build."""


def command(python: str, model: RewardModel, path: str, host: str, port: int, gpus: int) -> list[str]:
    """What to execute. path: of the model. gpus: of this server. The user's own arguments come last, so they win."""
    parallel = ["--tensor-parallel-size", str(gpus)] if gpus > 1 else []
    place = ["--model", path, "--served-model-name", model.name, "--host", host, "--port", str(port)]
    quiet = ["--disable-uvicorn-access-log"]  # else a line for each response
    return [python, *_MODULE, *place, *quiet, *parallel, *model.arguments]


def environment(gpus: int) -> dict[str, str]:
    """Variables of the server; the job's own win."""
    return {**ENVIRONMENT, **({} if gpus else CPU_ENVIRONMENT)}
