"""The engine's side of a weight sync: checks the order of buckets."""

from collections.abc import Iterator, Set
from contextlib import contextmanager

from torch import Tensor

from rljob_trainer.errors import InfrastructureError
from rljob_trainer.weights.bucket import BucketDescriptor
from rljob_trainer.weights.transport import opened


class BucketReceiver:
    """One process's view of one update at a time."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._next_index = 0
        self._names: set[str] = set()

    def begin(self, version: int) -> None:
        """Expect bucket 0 of `version`; discards an unfinished update."""
        self._version, self._next_index, self._names = version, 0, set()

    @contextmanager
    def open(self, bucket: BucketDescriptor) -> Iterator[Iterator[tuple[str, Tensor]]]:
        """(name, view) of each tensor; the views are valid only inside the with block.

        Raises InfrastructureError for a bucket of another version, and if one is missing or repeated.
        """
        if (bucket.version, bucket.index) != (self._version, self._next_index):
            raise InfrastructureError(
                f"bucket {bucket.index} of version {bucket.version} arrived instead of bucket {self._next_index} of "
                f"version {self._version}"
            )
        self._next_index += 1
        self._names.update(slot.name for slot in bucket.slots)
        with opened(bucket.handle) as data:
            yield bucket.tensors(data)

    def finish(self, version: int) -> Set[str]:
        """End the update; the names that arrived. Raises InfrastructureError for another version."""
        if version != self._version:
            raise InfrastructureError(f"update {version} ended while update {self._version} was in progress")
        self._version = None
        return self._names
