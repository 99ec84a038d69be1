"""What was measured: plain figures, each class those of one part of the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


def percentile(share: int, values: Sequence[float]) -> float:
    """The least value that `share` % of them do not exceed: one of them, however few there are."""
    return float(np.percentile(values, share, method="inverted_cdf"))


@dataclass(frozen=True, slots=True)
class Creation:
    """latencies: seconds from a job's arrival at the API server to its last child's. cpu: seconds, by component.

    seconds: how long it took to send all of them. calls: of the operator, by verb, resource and code.
    """

    jobs: int
    rate: float
    seconds: float
    latencies: Sequence[float]
    calls: Mapping[tuple[str, str, int], int]
    cpu: Mapping[str, float]
    wall: float

    @property
    def p50(self) -> float:
        return percentile(50, self.latencies)

    @property
    def p99(self) -> float:
        return percentile(99, self.latencies)


@dataclass(frozen=True, slots=True)
class Full:
    """A store full of jobs. filled: seconds that it took to make them. start: until an operator had decided on all.

    reconciles: how many that took. writes: that it made meanwhile. memory: bytes of the operator, empty and full.
    start_cpu: CPU seconds by component until then. rest: those of `rest_seconds` in which nothing happened but that
    the operator listed everything once, as it does every so often.
    """

    jobs: int
    filled: float
    start: float
    reconciles: int
    writes: int
    memory: tuple[int, int]
    start_cpu: Mapping[str, float]
    rest_seconds: float
    rest: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Life:
    """Calls of the operator for one job from its creation to Succeeded, by verb and resource; the mean of some.

    steps: each of a second. every: so many of them lie between two checkpoints.
    """

    jobs: int
    steps: int
    every: int
    calls: Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class Compared:
    """The same RayClusters made by RLJobs and by KubeRay's RayJobs.

    cluster: seconds from the job's arrival at the API server to its RayCluster's creation. pods: to its last pod's.
    calls: to the API server per job, by who made them. cpu: seconds per job, by component.
    """

    kind: str
    jobs: int
    cluster: Sequence[float]
    pods: Sequence[float]
    calls: Mapping[str, float]
    cpu: Mapping[str, float]
