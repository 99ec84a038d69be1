"""The dtype of matrix products. Light: the driver imports it."""

from collections.abc import Mapping
from typing import Literal

from rljob_api import ResolvedSpec

ComputeDtype = Literal["bfloat16", "float32"]

ITEM_BYTES: Mapping[ComputeDtype, int] = {"bfloat16": 2, "float32": 4}


def compute_dtype(spec: ResolvedSpec, device: str) -> ComputeDtype:
    """`spec.model.dtype`; auto is bfloat16 on a GPU and float32 on a CPU."""
    if spec.model.dtype == "auto":
        return "bfloat16" if device == "cuda" else "float32"
    return spec.model.dtype
