"""What kopf's watches are going to say: a stream for each kind, in the order of the changes, late by any time.

A stream that breaks loses what it has not told. kopf then lists the kind, and tells of everything that is there: what
was deleted meanwhile stays unknown until somebody else lists.
"""

from collections import deque

from rljob_operator.kube.kinds import CLUSTER_WIDE, RLJOB, WATCHED, Key, Kind, Manifest
from rljob_operator.names import JOB_LABEL
from tests.rljob_operator.world.api_server import ApiServer

Event = Manifest
"""type and object, as kopf gives them to handlers."""


class Streams:
    """stalled: kinds of which nothing is told for now."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self.stalled: set[Kind] = set()
        self._untold: dict[Kind, deque[Event]] = {kind: deque() for kind in WATCHED}
        self._told: dict[Kind, deque[Event]] = {kind: deque(maxlen=5) for kind in WATCHED}
        server.watchers.append(self._hear)

    def waiting(self) -> list[Kind]:
        return [kind for kind, events in self._untold.items() if events and kind not in self.stalled]

    def is_late(self) -> bool:
        return any(self._untold.values())

    def take(self, kind: Kind) -> Event:
        """The next one to tell."""
        event = self._untold[kind].popleft()
        self._told[kind].append(event)
        return event

    def repeated(self, kind: Kind) -> list[Event]:
        """What was told before, to be told again."""
        return [*self._told[kind]]

    def break_off(self, kind: Kind) -> None:
        here = self._server.all(kind)
        self._untold[kind] = deque({"type": None, "object": each} for each in here if _is_watched(kind, each))

    def begin(self) -> None:
        """For a process that has just listed everything."""
        for events in (*self._untold.values(), *self._told.values()):
            events.clear()

    def _hear(self, kind: Kind, event: str, manifest: Manifest) -> None:
        """Who loses our label is deleted, as watches of labels say it: as it was, in the version of that change."""
        if kind not in self._untold:
            return
        before = self._server.find(kind, Key.of(manifest))
        if _is_watched(kind, manifest):
            self._untold[kind].append({"type": event, "object": manifest})
        elif before is not None and _is_watched(kind, before):
            version = {"resourceVersion": manifest["metadata"]["resourceVersion"]}
            left = {**before, "metadata": before["metadata"] | version}
            self._untold[kind].append({"type": "DELETED", "object": left})


def _is_watched(kind: Kind, manifest: Manifest) -> bool:
    return kind in (RLJOB, *CLUSTER_WIDE) or JOB_LABEL in manifest["metadata"].get("labels", {})
