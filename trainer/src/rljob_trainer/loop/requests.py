"""Requests to a training: save a checkpoint between two steps, and perhaps stop after it.

They come as signals (Ctrl-C, SIGTERM), or as control/request.json, which the agent writes for its callers.
"""

import threading
from dataclasses import dataclass

from rljob_trainer.progress.state import read_object, supervised
from rljob_trainer.volume import Volume


@dataclass(frozen=True, slots=True)
class Request:
    """id: of a request through the agent; None for a signal. stop: end the attempt after the checkpoint."""

    id: str | None
    stop: bool


class Requests:
    """The requests to one attempt. Whatever was asked before it began was asked of another one, unless an `rljob run`
    goes from one to the next: that one removes what is older than itself.
    """

    def __init__(self, volume: Volume, interrupted: threading.Event) -> None:
        self._path, self._interrupted = volume.request, interrupted
        self._done: object = None
        if not supervised(volume):
            self._path.unlink(missing_ok=True)

    def pending(self) -> Request | None:
        """What is asked and not yet done. It costs one look for a file."""
        if self._interrupted.is_set():
            return Request(None, stop=True)
        asked = read_object(self._path)
        if asked is None or asked.get("id") == self._done:
            return None
        return Request(asked.get("id"), stop=bool(asked.get("stop")))

    def done(self, request: Request) -> None:
        """Take the request away, unless a newer one has replaced it."""
        self._done = request.id
        asked = read_object(self._path)
        if asked is not None and asked.get("id") == request.id:
            self._path.unlink(missing_ok=True)
