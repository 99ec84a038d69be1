"""Sums over parts of a batch that add up to mean, deviation and extremes of the whole. Light: the driver imports it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Spread:
    """Of some numbers: how many, sum, sum of squares, smallest and largest."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    smallest: float = math.inf
    largest: float = -math.inf

    @classmethod
    def of(cls, values: NDArray[Any]) -> "Spread":
        """values: [N], numbers or truth values."""
        numbers = values.astype(np.float64)
        if not numbers.size:
            return cls()
        squares = float(numbers @ numbers)
        return cls(numbers.size, float(numbers.sum()), squares, float(numbers.min()), float(numbers.max()))

    def __add__(self, other: "Spread") -> "Spread":
        return Spread(
            self.count + other.count,
            self.total + other.total,
            self.squares + other.squares,
            min(self.smallest, other.smallest),
            max(self.largest, other.largest),
        )

    @property
    def mean(self) -> float:
        return self.total / max(1, self.count)

    def deviation(self, degrees: int = 0) -> float:
        """Standard deviation: the root of the squared distances over count - degrees; 0 for at most that many."""
        n = self.count - degrees
        return math.sqrt(max(0.0, self.squares - self.total * self.mean) / n) if n > 0 else 0.0

    @property
    def effective(self) -> float:
        """Effective sample size of weights, as a share of their number; 0 if all are 0."""
        return self.total**2 / (self.count * self.squares) if self.squares > 0 else 0.0


Kind = Literal["mean", "extremes", "std", "weights", "sequences", "from_0", "from_1"]

KINDS: Mapping[Kind, Mapping[str, Callable[[Spread], float]]] = {
    "mean": {"": lambda of: of.mean},
    "extremes": {"_max": lambda of: of.largest, "_min": lambda of: of.smallest},
    "std": {"_std": lambda of: of.deviation()},
    "weights": {
        "_mean": lambda of: of.mean,
        "_std": lambda of: of.deviation(),
        "_eff_sample_size": lambda of: of.effective,
    },
    "sequences": {
        "_mean": lambda of: of.mean,
        "_std": lambda of: of.deviation(degrees=1),
        "_max": lambda of: of.largest,
        "_min": lambda of: of.smallest,
    },
    "from_0": {"_max_deviation": lambda of: max(of.largest, -of.smallest)},
    "from_1": {"_max_deviation": lambda of: max(of.largest - 1, 1 - of.smallest)},
}
"""What is reported of a Spread: {end of the metric's name: its value}."""

Spreads = dict[tuple[str, Kind], Spread]
"""By the name of the metric without its end, and what is reported of it."""


def added(parts: list[Spreads]) -> Spreads:
    """Those of all parts; each has the same names, or none."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum((part.get(name, Spread()) for part in parts), start=Spread()) for name in names}


def reported(spreads: Spreads) -> dict[str, float]:
    """The metrics of what at least one number is known of."""
    return {
        f"{name}{end}": value(spread)
        for (name, kind), spread in spreads.items()
        if spread.count
        for end, value in KINDS[kind].items()
    }
