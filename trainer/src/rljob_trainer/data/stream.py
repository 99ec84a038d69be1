"""Endless or bounded batches of a dataset, with a position that is saved in each checkpoint."""

from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

from rljob_trainer.data.position import EpochOrder
from rljob_trainer.data.supervised import SupervisedExample
from rljob_trainer.old_types import Prompt

ItemT_co = TypeVar("ItemT_co", covariant=True)


class Dataset(Protocol[ItemT_co]):
    """Tokenised rows. `fingerprint` changes when a row or its order does."""

    @property
    def fingerprint(self) -> str: ...

    def __len__(self) -> int: ...

    def item(self, index: int, epoch: int | str) -> ItemT_co:
        """Row `index` (0 <= index < len) with the id "EPOCH/ROW", where ROW counts the rows of the files."""


class DataStream(Generic[ItemT_co]):
    """Batches of `dataset` in the order of `EpochOrder`."""

    def __init__(
        self, dataset: Dataset[ItemT_co], *, seed: int, shuffle: bool = True, epochs: int | None = None
    ) -> None:
        self._dataset = dataset
        self._order = EpochOrder(
            len(dataset), seed=seed, fingerprint=dataset.fingerprint, shuffle=shuffle, epochs=epochs
        )

    @property
    def exhausted(self) -> bool:
        """Whether every row of every epoch was handed out; never, without `epochs`."""
        return self._order.exhausted

    @property
    def epoch(self) -> int:
        """Epoch of the last item, from 0."""
        return self._order.epoch

    def next(self, count: int) -> list[ItemT_co]:
        """The next `count` items; fewer, or none, only where the last epoch ends."""
        return [self._dataset.item(row, epoch) for epoch, row in self._order.take(count)]

    def state_dict(self) -> dict[str, Any]:
        """The position: epoch, position, exhausted, seed, rows, fingerprint."""
        return self._order.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken: no item is skipped and none comes twice.

        Raises:
            DataError: the data is not what the position was taken in.
        """
        self._order.load_state_dict(state)


PromptStream = DataStream[Prompt]
SupervisedStream = DataStream[SupervisedExample]
