"""Whether Triton can build kernels here: it compiles a launcher in C for each."""

import os
import shutil
import sysconfig
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def missing_for_triton() -> str | None:
    """What is missing: the package, a C compiler, or Python's headers; None if Triton can build kernels."""
    if find_spec("triton") is None:
        return "the package triton"
    if not os.environ.get("CC") and not any(map(shutil.which, ("cc", "gcc", "clang"))):
        return "a C compiler"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return None if header.is_file() else f"Python's headers ({header})"


@cache
def triton_ready() -> bool:
    """Whether nothing is missing. Logs once what is."""
    missing = missing_for_triton()
    if missing is not None:
        import structlog

        structlog.get_logger().warning(
            "triton_missing", missing=missing, effect="plain PyTorch computes instead: slower"
        )
    return missing is None
