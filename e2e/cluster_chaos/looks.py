"""Looks that are repeated in threads of their own while something else goes on."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

Look = Callable[[], None]


@contextmanager
def repeated(looks: dict[Look, float]) -> Iterator[None]:
    """looks: with the seconds between two. One that fails ends, and raises afterwards: its verdicts would be hollow."""
    stop = Event()

    def repeat(look: Look, seconds: float) -> None:
        while not stop.wait(seconds):
            look()

    with ThreadPoolExecutor(len(looks)) as threads:
        tasks = [threads.submit(repeat, look, seconds) for look, seconds in looks.items()]
        try:
            yield
        finally:
            stop.set()
    for task in tasks:
        task.result()
