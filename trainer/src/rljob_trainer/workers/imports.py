"""Imports of large libraries."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection, then exclude the block's objects from later collections.

    Imports make hundreds of thousands of permanent objects, which every full collection would traverse.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
