"""Events, as `kubectl describe` shows them."""

import socket
from dataclasses import dataclass
from datetime import UTC, datetime

from rljob_api.printable import printable
from rljob_operator.kube.kinds import EVENT, Manifest, Ref

CONTROLLER = "rljob.dev/operator"
_NOTE_BYTES = 1024  # the API server's limit
_NAME_CHARACTERS = 200  # of 253; the rest is for version and place


@dataclass(frozen=True)
class Event:
    """What happened to an object. Its identity, if it is posted again, is object, version and place.

    reason, action: one CamelCase word each: what happened, and what the operator did or tried.
    at: its time, with a time zone; `kubectl events` sorts by it.
    version: the object's resourceVersion, after the write that it reports. place: among the events of that write.
    """

    about: Ref
    reason: str
    note: str
    action: str
    at: datetime
    version: str
    place: int = 0
    warning: bool = False

    def manifest(self) -> Manifest:
        about = self.about
        return EVENT.manifest(
            {"name": self._name(), "namespace": about.namespace},
            eventTime=self.at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            type="Warning" if self.warning else "Normal",
            reason=self.reason,
            action=self.action,
            note=printable(self.note).encode()[:_NOTE_BYTES].decode(errors="ignore"),
            reportingController=CONTROLLER,
            reportingInstance=socket.gethostname()[:128],
            regarding={
                "apiVersion": about.kind.api_version,
                "kind": about.kind.name,
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
            },
        )

    def _name(self) -> str:
        """`kubectl describe` sorts by lastTimestamp alone, which this API lacks, and then by name: so names are in the
        order of the writes.
        """
        return f"{self.about.name[:_NAME_CHARACTERS]}.{int(self.version):016x}.{self.place:02}"
