"""How long engines have requests. For one thread: the event loop of the rollout host."""

import time
from collections import Counter
from collections.abc import Callable


class EngineTime:
    """Seconds in which an engine had a request, the mean over engines.

    Of two engines, of which one has requests for 4 s and the other one for 1 s of these: 2.5 s.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._last = now, now()
        self._requests: Counter[str] = Counter()
        self._engines = 1
        self._total = 0.0

    def attach(self, engines: int) -> None:
        """So many engines share the work from now on."""
        self.seconds()
        self._engines = max(1, engines)

    def begin(self, engine: str) -> None:
        """It got a request."""
        self.seconds()
        self._requests[engine] += 1

    def end(self, engine: str) -> None:
        """It has one request less: finished, aborted, or given to another one."""
        self.seconds()
        self._requests[engine] -= 1

    def seconds(self) -> float:
        """Since the beginning."""
        now, before = self._now(), self._last
        working = sum(requests > 0 for requests in self._requests.values())
        self._total += (now - before) * working / self._engines
        self._last = now
        return self._total
