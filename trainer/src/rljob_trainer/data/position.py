"""Which rows come next: the seeded order of each epoch, and a position in it that survives a restart."""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_trainer.errors import DataError


class EpochOrder:
    """Visits each row once an epoch, in an order that depends on (seed, epoch) alone.

    With `epochs`, the last batch may be short, and `exhausted` becomes True; without, a batch may span two epochs.
    `position` counts the rows of the current epoch that were handed out: after the last row it is `rows`, and the next
    row starts the next epoch.

    difficulties: [rows]; each epoch begins with the smallest. None: no such order. `fingerprint` depends on them.
    measures: from the second epoch on, the order is that of the rewards that `measure` got before the epoch began.
    """

    def __init__(
        self, rows: int, *, seed: int, fingerprint: str, shuffle: bool = True, epochs: int | None = None,
        difficulties: NDArray[np.float64] | None = None, measures: bool = False,
    ) -> None:  # fmt: skip
        if rows < 1:
            raise ValueError("an epoch needs at least one row")
        self._rows = rows
        self._seed = seed
        self._fingerprint = fingerprint
        self._shuffle = shuffle
        self._epochs = epochs
        self._difficulties = difficulties
        self._rewards = np.full(rows, np.nan, np.float32) if measures else None
        self._ordering = None if self._rewards is None else self._rewards.copy()  # as the epoch began
        self._epoch = 0
        self._position = 0
        self._order = self._order_of(0)

    @property
    def epoch(self) -> int:
        """Epoch of the last row handed out, from 0."""
        return self._epoch

    @property
    def exhausted(self) -> bool:
        """Whether every row of every epoch was handed out."""
        return self._epochs is not None and self._epoch + 1 >= self._epochs and self._position >= self._rows

    def take(self, count: int) -> list[tuple[int, int]]:
        """The next (epoch, row) pairs: `count` of them, or fewer if the last epoch ends."""
        taken: list[tuple[int, int]] = []
        while len(taken) < count and not self.exhausted:
            if self._position == self._rows:
                self._start(self._epoch + 1)
            rows = self._order[self._position : self._position + count - len(taken)]
            taken += [(self._epoch, int(row)) for row in rows]
            self._position += len(rows)
        return taken

    def measure(self, row: int, reward: float) -> None:
        """The mean reward of the row's last responses; nothing unless it orders epochs."""
        if self._rewards is not None:
            self._rewards[row] = reward

    def state_dict(self) -> dict[str, Any]:
        """The position, as plain values."""
        return {
            **(
                {"rewards": _text(self._rewards), "ordering": _text(self._ordering)}
                if self._rewards is not None
                else {}
            ),
            "epoch": self._epoch,
            "position": self._position,
            "exhausted": self.exhausted,
            "seed": self._seed,
            "rows": self._rows,
            "fingerprint": self._fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken.

        Raises:
            DataError: the data differs from that of the position.
        """
        if state["rows"] != self._rows or state["fingerprint"] != self._fingerprint:
            raise DataError(
                f"the data changed since the checkpoint: it had {state['rows']} usable rows and now has {self._rows}"
                + (" (their content differs)" if state["rows"] == self._rows else "")
                + "; restore the files, or start over with checkpoint.resume: never",
                field="spec.data.train",
            )
        self._seed = state["seed"]
        if self._rewards is not None:  # without them, the rows of an earlier run were not measured
            nothing = np.full(self._rows, np.nan, np.float32)
            self._rewards, self._ordering = (
                _array(state[name]) if name in state else nothing.copy() for name in ("rewards", "ordering")
            )
        self._epoch, self._position = state["epoch"], state["position"]
        self._order = self._order_of(self._epoch)

    def _start(self, epoch: int) -> None:
        self._epoch = epoch
        self._position = 0
        self._ordering = None if self._rewards is None else self._rewards.copy()
        self._order = self._order_of(epoch)

    def _order_of(self, epoch: int) -> NDArray[np.int64]:
        order = np.arange(self._rows)
        if self._shuffle:
            order = np.random.default_rng([self._seed, epoch]).permutation(self._rows)
        difficulties = self._difficulties if self._ordering is None else -self._ordering
        return order if difficulties is None else order[np.argsort(difficulties[order], kind="stable")]  # NaN is last


def _text(numbers: NDArray[np.float32] | None) -> str:
    assert numbers is not None
    return base64.b64encode(numbers.astype("<f4").tobytes()).decode()


def _array(text: str) -> NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(text), "<f4").astype(np.float32)
