"""Events, as `kubectl describe` shows them."""

import hashlib
import socket
from dataclasses import dataclass
from datetime import UTC, datetime

from rljob_operator.kube.kinds import EVENT, Manifest, Ref

CONTROLLER = "rljob.dev/operator"
_NOTE_BYTES = 1024  # the API server's limit
_NAME_CHARACTERS = 200  # of 253; the rest is for the digest


@dataclass(frozen=True)
class Event:
    """What happened to an object. It has one identity, however often it is posted: object, reason, note and time.

    reason, action: one CamelCase word each: what happened, and what the operator did or tried.
    at: when, such as the condition's lastTransitionTime; with its time zone.
    """

    about: Ref
    reason: str
    note: str
    action: str
    at: datetime
    warning: bool = False

    def manifest(self) -> Manifest:
        about = self.about
        return {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.name,
            "metadata": {"name": self._name(), "namespace": about.namespace},
            "eventTime": self.at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "type": "Warning" if self.warning else "Normal",
            "reason": self.reason,
            "action": self.action,
            "note": self.note.encode()[:_NOTE_BYTES].decode(errors="ignore"),
            "reportingController": CONTROLLER,
            "reportingInstance": socket.gethostname()[:128],
            "regarding": {
                "apiVersion": about.kind.api_version,
                "kind": about.kind.name,
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
            },
        }

    def _name(self) -> str:
        said = "\n".join((self.about.uid, self.reason, self.note, self.at.astimezone(UTC).isoformat()))
        return f"{self.about.name[:_NAME_CHARACTERS]}.{hashlib.sha256(said.encode()).hexdigest()[:16]}"
