"""Endless or bounded batches of a dataset, with a position that is saved in each checkpoint."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rljob_trainer.data.position import EpochOrder
from rljob_trainer.data.supervised import SupervisedExample
from rljob_trainer.types import Task

ItemT_co = TypeVar("ItemT_co", covariant=True)


class Dataset(Protocol[ItemT_co]):
    """Tokenised rows. `fingerprint` changes when a row or its order does."""

    @property
    def fingerprint(self) -> str: ...

    def __len__(self) -> int: ...

    def item(self, index: int, epoch: int | str) -> ItemT_co:
        """Row `index` (0 <= index < len) in that epoch."""


class DataStream(Generic[ItemT_co]):
    """Batches of `dataset` in the order of `EpochOrder`. difficulties: [rows], as there; measures too."""

    def __init__(
        self, dataset: Dataset[ItemT_co], *, seed: int, shuffle: bool = True, epochs: int | None = None,
        difficulties: NDArray[np.float64] | None = None, measures: bool = False,
    ) -> None:  # fmt: skip
        self._dataset = dataset
        fingerprint = dataset.fingerprint
        if difficulties is not None:
            fingerprint = hashlib.sha256(fingerprint.encode() + difficulties.tobytes()).hexdigest()
        self._order = EpochOrder(
            len(dataset), seed=seed, fingerprint=fingerprint, shuffle=shuffle, epochs=epochs, difficulties=difficulties,
            measures=measures,
        )  # fmt: skip

    @property
    def exhausted(self) -> bool:
        """Whether every row of every epoch was handed out; never, without `epochs`."""
        return self._order.exhausted

    @property
    def epoch(self) -> int:
        """Epoch of the last item, from 0."""
        return self._order.epoch

    def next(self, count: int) -> list[ItemT_co]:
        """The next `count` items; fewer, or none, only at the end of the last epoch."""
        return [self._dataset.item(row, epoch) for epoch, row in self._order.take(count)]

    def state_dict(self) -> dict[str, Any]:
        """The position: epoch, position, exhausted, seed, rows, fingerprint."""
        return self._order.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken: no item is skipped or repeated.

        Raises:
            DataError: the data differs from that of the position.
        """
        self._order.load_state_dict(state)


class TaskStream(DataStream[Task]):
    """Tasks of RL steps. One that was issued and neither used nor dropped comes first after a resume."""

    def __init__(
        self, dataset: "TaskDataset", *, seed: int, shuffle: bool = True, epochs: int | None = None,
        difficulties: NDArray[np.float64] | None = None, measures: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            dataset, seed=seed, shuffle=shuffle, epochs=epochs, difficulties=difficulties, measures=measures
        )
        self._tasks = dataset
        self._issued: list[str] = []

    @property
    def waiting(self) -> int:
        """Tasks to issue again. The data ends without them: a step of them alone would have nothing else to use."""
        return len(self._issued)

    def next(self, count: int) -> list[Task]:
        """The next `count` tasks: first those to issue again, then rows."""
        again, self._issued = self._issued[:count], self._issued[count:]
        return [self.task(task_id) for task_id in again] + super().next(count - len(again))

    def task(self, task_id: str) -> Task:
        """The task of that id, without moving the position. Raises KeyError for an unknown row."""
        return self._tasks.item_of(task_id)

    def measure(self, task_id: str, reward: float) -> None:
        """The mean reward of a task's group, by which later epochs are ordered if they are."""
        self._order.measure(self._tasks.index_of(task_id), reward)

    def issue_again(self, task_ids: Sequence[str]) -> None:
        """Hand these out before any row, with unchanged ids."""
        self._issued += task_ids

    def state_dict(self) -> dict[str, Any]:
        """The position, and the tasks to issue again."""
        return super().state_dict() | {"issued": list(self._issued)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._issued = list(state["issued"])


class TaskDataset(Dataset[Task], Protocol):
    """Tasks by row and by id."""

    def item_of(self, task_id: str) -> Task:
        """The task of that id. Raises KeyError for a row that the files do not have."""

    def index_of(self, task_id: str) -> int:
        """Its row. Raises KeyError as item_of."""


SupervisedStream = DataStream[SupervisedExample]
