"""Imports of large libraries."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collection, and what this block leaves is never looked at again.

    Imports make hundreds of thousands of objects that stay. The collector would look through all of them time and
    again, and once more in each later full collection.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
