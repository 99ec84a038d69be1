"""Where compiled kernels wait for the next start: the caches of vLLM, torch.compile and Triton. Light.

On a machine they are in the user's folders. A pod loses those, so in a cluster they are on the job's volume, and an
attempt in new pods finds them. Each cache knows its entries by content; the folder's name keeps those of other versions
and GPUs apart.
"""

import os
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_VARIABLES = {"VLLM_CACHE_ROOT": "vllm", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}

_PACKAGES = ("torch", "triton", "vllm")

_CLUSTER = "KUBERNETES_SERVICE_HOST"
"""Kubernetes sets it in every container."""

_DRIVER = Path("/proc/driver/nvidia/gpus")


def compiled_folder(volume: Path) -> str | None:
    """The folder for a run's workers; None: they keep what they compile where the user's other programs do."""
    return str(volume / "compiled") if _CLUSTER in os.environ else None


def keep_compiled(folder: str | None, gpus: Path = _DRIVER) -> None:
    """Let this process keep there what it compiles; before it compiles. A variable that is set stays as it is.

    gpus: where NVIDIA's driver describes each.
    """
    if folder is None:
        return
    own = Path(folder) / "-".join([*(f"{name}{_version(name)}" for name in _PACKAGES), _gpu(gpus)])
    for variable, name in _VARIABLES.items():
        os.environ.setdefault(variable, str(own / name))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _gpu(folder: Path) -> str:
    """The model of the first GPU, without spaces."""
    texts = [file.read_text() for file in sorted(folder.glob("*/information"))]
    found = re.search(r"^Model:\s*(.+?)\s*$", texts[0], re.MULTILINE) if texts else None
    return re.sub(r"\W+", "_", found[1]) if found else "unknown"
