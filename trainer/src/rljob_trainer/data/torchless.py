"""transformers in a process that computes nothing: the driver needs its tokenizers and configurations alone."""

import os
import sys

from rljob_trainer.workers.imports import uncollected


def import_transformers() -> None:
    """Import transformers, in such a way that it never imports torch in this process: seconds, and memory.

    It would with the first tokenizer, wherever torch is installed, and no setting prevents it. But it looks for torch
    once and remembers. Torch itself can be imported later, as a model's own code may.
    """
    if "torch" in sys.modules:
        return
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # that torch is missing
    sys.modules["torch"] = None  # type: ignore[assignment]  # "not installed", for Python
    try:
        from transformers.utils import is_torch_available

        is_torch_available()
    finally:
        del sys.modules["torch"]
    with uncollected():
        from transformers import AutoTokenizer  # noqa: F401  the rest of the second
