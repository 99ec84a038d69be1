"""The server of a reward model: of vLLM, which `rljob run` or the operator starts, or one that runs already."""

from collections.abc import Mapping
from typing import Final

from rljob_api.v1alpha1 import RewardModel

HEALTH: Final = "/health"
"""Returns 200 while the model is loaded and works."""

MODELS: Final = "/v1/models"
"""Names the models that a server serves."""

KEY_VARIABLE: Final = "VLLM_API_KEY"
"""Environment variable of a server that the job starts: the key that it asks for. Arguments are public on a machine."""

_GUARD: Final = ("--middleware", "rljob_trainer.rewards.models.guard.KeyGuard")
"""Asks for the key at every path: vLLM itself does so below /v1 alone. An image of the user's need not have it."""

ENVIRONMENT: Final[Mapping[str, str]] = {"VLLM_NO_USAGE_STATS": "1"}
CPU_ENVIRONMENT: Final[Mapping[str, str]] = {
    "TORCHDYNAMO_DISABLE": "1",  # compiling needs a C++ compiler and takes longer than it saves
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # binding would give all processes of a machine the same cores
}


_MODULE: Final = ("-m", "vllm.entrypoints.openai.api_server")
"""The module that `vllm serve` runs. The command needs a distribution named vllm, which the CPU build is not."""


def command(python: str, model: RewardModel, path: str, host: str, port: int, gpus: int) -> list[str]:
    """The server's command line. path: the model. gpus: GPUs of this server. The user's arguments come last and win."""
    parallel = ["--tensor-parallel-size", str(gpus)] if gpus > 1 else []
    place = ["--model", path, "--served-model-name", model.name, "--host", host, "--port", str(port)]
    quiet = ["--disable-uvicorn-access-log"]  # otherwise it logs a line for each response
    guard = _GUARD if model.image is None else ()
    return [python, *_MODULE, *place, *quiet, *guard, *parallel, *model.arguments]


def environment(gpus: int) -> dict[str, str]:
    """Environment variables of the server; those of the model override them."""
    return {**ENVIRONMENT, **({} if gpus else CPU_ENVIRONMENT)}


def key_variable(model: RewardModel) -> str:
    """Environment variable of the processes that send requests: the API key of the model's server."""
    return f"RLJOB_REWARD_KEY_{model.name.upper().replace('-', '_')}"
