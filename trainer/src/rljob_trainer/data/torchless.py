"""transformers without torch, for the driver, which needs only tokenizers and configurations."""

import os
import sys

from rljob_trainer.workers.imports import uncollected


def import_transformers() -> None:
    """Import transformers so that it never imports torch in this process, which saves seconds and memory.

    No setting prevents the import, but transformers looks for torch only once and caches the result. Other code, such
    as a model's, can still import torch later.
    """
    if "torch" in sys.modules:
        return
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # of missing torch
    sys.modules["torch"] = None  # type: ignore[assignment]  # Python treats it as not installed
    try:
        from transformers.utils import is_torch_available

        is_torch_available()
    finally:
        del sys.modules["torch"]
    with uncollected():
        from transformers import AutoTokenizer  # noqa: F401  the slow part of the import
