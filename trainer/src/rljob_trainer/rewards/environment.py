"""What reward code and servers of reward models see of the environment: what they need, and what the job names."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

_NEEDED = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "LANG", "LANGUAGE", "LC_*", "TZ", "TERM",
    "TMPDIR", "TEMP", "TMP", "XDG_*", "PYTHON*", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "LD_PRELOAD",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NO_PROXY", "no_proxy",
    "*_NUM_THREADS", "MKL_*", "KMP_*", "GOMP_*", "TOKENIZERS_PARALLELISM", "MALLOC_*",
    "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "NVIDIA_*",
    "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_CACHE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE",
)  # fmt: skip
"""No name of a secret; proxies may have a password in their address, so a function that needs one names it."""

_SERVER = (
    "VLLM_*", "HF_HUB_*", "HF_ENDPOINT", "HF_XET_*", "CUDA_*", "NCCL_*", "TORCH*", "TRITON_*", "FLASHINFER_*",
    "CC", "CXX", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy",
)  # fmt: skip
"""What vLLM needs besides, also to download its model. No token of the hub: a model that needs one names it."""

_NEVER = ("RAY_*",)
"""A process that has Ray's token controls the cluster of the job."""


def reward_environment(environment: Mapping[str, str], named: Sequence[str]) -> dict[str, str]:
    """The variables of a process with reward code or an environment. named: rewards.functions[].env.

    A fixed hash seed: code that runs again, in another process, sees the same order of a set.
    """
    return _selected(environment, (*_NEEDED, *named)) | {"PYTHONHASHSEED": "0"}


def server_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of a reward model's server, besides rewards.models[].env."""
    return _selected(environment, (*_NEEDED, *_SERVER))


def _selected(environment: Mapping[str, str], patterns: Sequence[str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
        and not any(fnmatchcase(name, pattern) for pattern in _NEVER)
    }
