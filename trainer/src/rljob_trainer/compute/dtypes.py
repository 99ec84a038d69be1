"""The dtype of matrix products. Light: the driver imports it."""

from typing import Literal

from rljob_api import ResolvedSpec


def compute_dtype(spec: ResolvedSpec, device: str) -> Literal["bfloat16", "float32"]:
    """`spec.model.dtype`; auto is bfloat16 on a GPU and float32 on a CPU."""
    if spec.model.dtype == "auto":
        return "bfloat16" if device == "cuda" else "float32"
    return spec.model.dtype
