"""Everything that a call of the API server raises.

KubeError
├── Fenced          nothing was sent: this process leads no longer                     leave
├── NotFound        404: the object, its namespace, or its kind (a missing CRD)        look again
├── AlreadyExists   409: the name is taken                                             check its owner
├── Conflict        409: the object changed since it was read                          look again, decide again
├── Forbidden       401, 403: permissions, quota;                                      report it, try again slowly
│   │               any answer of an admission webhook or policy: others
│   │               change those, and webhooks that fail come back
│   └── Terminating 403: the namespace is going away, and takes nothing new            look again, quietly
├── Invalid         400, 422 and the like: the object is wrong;                        report it; it stays wrong
│                   500 where server-side apply does not know one of its fields
└── Unavailable     5xx, 408, 410, no connection, no answer in time; a CRD that is     try again
    │               younger than the API server's list of kinds
    └── Throttled   429                                                                try again after retry_after

A write that ends in Unavailable may have been carried out.
"""

import json
import re
from collections.abc import Mapping
from typing import Any


class KubeError(Exception):
    """message: the API server's own. reason: for programs, such as AlreadyExists. fields: that it finds fault with,
    such as spec.replicas. logged: whether the log reports it already. asked: of it, such as "create RayCluster".
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        fields: tuple[str, ...] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.reason, self.fields = message, status, reason, fields
        self.retry_after, self.logged, self.asked = retry_after, False, ""


class Fenced(KubeError):
    def __init__(self, message: str) -> None:
        super().__init__(message, reason="Fenced")


class NotFound(KubeError): ...


class AlreadyExists(KubeError): ...


class Conflict(KubeError): ...


class Forbidden(KubeError): ...


class Terminating(Forbidden):
    """Not worth a report: what is refused would go with the namespace, and so does the job."""


class Invalid(KubeError): ...


class Unavailable(KubeError):
    """retry_after: the seconds that the API server asked for; None if it asked for none."""


class Throttled(Unavailable): ...


class NoCluster(KubeError):
    """There is no kubeconfig, or a malformed one, and this process runs in no pod."""


_TYPES: Mapping[int, type[KubeError]] = {
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    408: Unavailable,
    409: Conflict,
    410: Unavailable,  # a list's next page: the snapshot that it belongs to is compacted
    429: Throttled,
}


_OF_ADMISSION = re.compile(r"(admission webhook|ValidatingAdmissionPolicy) .*denied|failed calling webhook", re.DOTALL)
"""The API server's words around the webhook's or policy's, which may have any status."""


_GOING_AWAY = "NamespaceTerminating"
"""Reason of one of the causes of such a refusal."""


_UNKNOWN_KIND = re.compile("cannot find RESTMapping for APIVersion .* no matches for kind")
"""The API server's own list of kinds is half a minute old, so it cannot yet check who owns a child of a new one."""


_NOT_OF_THE_SCHEMA = re.compile("failed to (create typed patch|convert new) object")
"""Of server-side apply, with 500: the object has an unknown field, or a field of another type."""


def error_from(status: int, headers: Mapping[str, str], body: bytes) -> KubeError:
    """What an answer other than 2xx means. The body is a Status object, or a proxy's or a filter's plain text."""
    found = _status_of(body)
    details = found.get("details") or {}
    reason = found.get("reason", "")
    causes = details.get("causes") or ()
    kind = _TYPES.get(status, Unavailable if status >= 500 else Invalid)
    message = str(found.get("message") or f"HTTP {status}")
    if reason == "AlreadyExists":
        kind = AlreadyExists
    elif any(each.get("reason") == _GOING_AWAY for each in causes):
        kind = Terminating
    elif _NOT_OF_THE_SCHEMA.search(message):
        kind = Invalid
    elif _UNKNOWN_KIND.search(message):
        kind = Unavailable
    elif _OF_ADMISSION.search(message):
        kind = Forbidden
    return kind(
        message,
        status=status,
        reason=reason,
        fields=tuple(each.get("field", "") for each in causes),
        retry_after=_seconds(headers.get("Retry-After")) or details.get("retryAfterSeconds"),
    )


def _status_of(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"message": body[:500].decode(errors="replace").strip()}


def _seconds(header: str | None) -> float | None:
    return float(header) if header is not None and header.isdecimal() else None


def one_line(words: str) -> str:
    """A message of several lines, the first of which introduces the others; each finding once."""
    lines = list(dict.fromkeys(filter(None, map(str.strip, words.splitlines()))))
    return ": ".join(filter(None, (lines[0].removesuffix(":"), "; ".join(lines[1:])))) if lines else ""
