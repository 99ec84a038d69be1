"""The operator's metrics. Its parts do not know them: they call what they are given.

Kube(observe=metrics.api_call)
WorkQueue(waited=metrics.queue_waited)
metrics.read(jobs=..., queue_depth=queue.__len__, leader=lease.held)      read at each scrape, so never outdated
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from rljob_api.v1alpha1.status import Phase
from rljob_operator.plan import CHARGED

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._reconcile = Histogram(
            "rljob_operator_reconcile_seconds",
            "One look at one RLJob, and what followed. result: success, or the name of the error that ended it",
            ["result"], buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._queue = Histogram(
            "rljob_operator_queue_seconds", "From the time that a look is due to its beginning",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._restarts = Counter(
            "rljob_operator_restarts", "Restarts charged to jobs' budgets. reason: of the failure", ["reason"],
            registry=registry,
        )  # fmt: skip
        for reason in CHARGED:  # increase() sees no growth in a series that begins at 1
            self._restarts.labels(reason)
        self._requests = Counter(
            "rljob_operator_api_requests",
            "Requests to the API server. code: of HTTP, or why there was no answer. Ended watches are repeated",
            ["verb", "resource", "code"], registry=registry,
        )  # fmt: skip
        self._request_seconds = Histogram(
            "rljob_operator_api_request_seconds",
            "The same, until the answer was complete; for kopf's watches, until it began",
            ["verb", "resource"], buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._depth = Gauge("rljob_operator_queue_depth", "Looks that are due and wait for a worker", registry=registry)
        self._leader = Gauge("rljob_operator_leader", "1 if this replica leads, else 0", registry=registry)

    def read(
        self, *, jobs: Callable[[], Mapping[str, int]], queue_depth: Callable[[], int], leader: Callable[[], bool]
    ) -> None:  # fmt: skip
        """What to read at each scrape. jobs: how many there are in each phase. Called once."""
        self.registry.register(_Jobs(jobs))
        self._depth.set_function(queue_depth)
        self._leader.set_function(leader)

    @contextmanager
    def reconcile(self) -> Iterator[None]:
        """Times a run. Its result is success, or the name of the error that ended it."""
        started, result = time.perf_counter(), "success"
        try:
            yield
        except BaseException as error:
            result = type(error).__name__
            raise
        finally:
            self._reconcile.labels(result).observe(time.perf_counter() - started)

    def queue_waited(self, seconds: float) -> None:
        self._queue.observe(seconds)

    def restarted(self, reason: str) -> None:
        self._restarts.labels(reason).inc()

    def api_call(self, verb: str, resource: str, code: str, seconds: float) -> None:
        self._requests.labels(verb, resource, code).inc()
        self._request_seconds.labels(verb, resource).observe(seconds)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)


class _Jobs(Collector):
    def __init__(self, count: Callable[[], Mapping[str, int]]) -> None:
        self._count = count

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily("rljob_operator_jobs", "RLJobs that it manages", labels=["phase"])
        for phase, jobs in (dict.fromkeys(get_args(Phase), 0) | dict(self._count())).items():
            family.add_metric([phase], jobs)
        yield family
