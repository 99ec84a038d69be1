"""GPUs that a plan can be made for. Pure."""

import re
from collections.abc import Mapping

from rljob_trainer.memory.held import GIB

DEFAULT = "H100-80GB"

GPUS: Mapping[str, float] = {
    "A10-24GB": 22.0,
    "A100-40GB": 39.4,
    "A100-80GB": 79.1,
    "L4-24GB": 22.0,
    "L40S-48GB": 44.4,
    DEFAULT: 79.1,
    "H200-141GB": 139.8,
    "B200-192GB": 178.3,
}
"""GiB that CUDA reports as the whole memory, which is less than the name says: `nvidia-smi -q -d MEMORY`."""


def gpu_bytes(name: str) -> int:
    """Memory of a GPU by its name, or of a size such as 46GiB. Raises ValueError with the known names."""
    if name in GPUS:
        return int(GPUS[name] * GIB)
    if size := re.fullmatch(r"(\d+(?:\.\d+)?)GiB", name):
        return int(float(size[1]) * GIB)
    raise ValueError(f"no GPU {name}: choose {', '.join(GPUS)}, or a size such as 46GiB")
