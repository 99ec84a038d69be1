"""Asynchronous tests: in a loop of their own, or in one whose clock jumps instead of waiting.

What fails in a callback, or in a task that nobody awaits, fails the test.
"""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

Test = Callable[..., Coroutine[Any, Any, None]]


def in_loop(test: Test) -> Callable[..., None]:
    return _in(asyncio.SelectorEventLoop, test)


def in_jumping_loop(test: Test) -> Callable[..., None]:
    """For tests without input and output: every sleep takes as long as it says by the loop's clock, and no time."""
    return _in(JumpingLoop, test)


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        timers = [timer.when() for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        if timers and not self._ready:  # type: ignore[attr-defined]
            self._now = max(self._now, min(timers))
        super()._run_once()  # type: ignore[misc]


def _in(loop: Callable[[], asyncio.AbstractEventLoop], test: Test) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        unhandled: list[dict[str, Any]] = []
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.get_loop().set_exception_handler(lambda _loop, context: unhandled.append(context))
            try:
                runner.run(test(*args, **kwargs))
            except BaseException as error:
                if unhandled:  # it may be what the test fails of
                    error.add_note(f"unhandled: {unhandled}")
                raise
        assert not unhandled, unhandled

    return run
