"""A thin asynchronous client of the API server: raw JSON, preconditions on every write, a fence, a deadline."""

from rljob_operator.kube.client import FIELD_MANAGER, Kube, Listing, Observer
from rljob_operator.kube.connection import Connection, Fence
from rljob_operator.kube.errors import (
    AlreadyExists,
    Cause,
    Conflict,
    Fenced,
    Forbidden,
    Invalid,
    KubeError,
    NoCluster,
    NotFound,
    Terminating,
    Throttled,
    Unavailable,
)
from rljob_operator.kube.events import Event
from rljob_operator.kube.kinds import Key, Kind, Manifest, Ref

__all__ = [
    "FIELD_MANAGER",
    "AlreadyExists",
    "Cause",
    "Conflict",
    "Connection",
    "Event",
    "Fence",
    "Fenced",
    "Forbidden",
    "Invalid",
    "Key",
    "Kind",
    "Kube",
    "KubeError",
    "Listing",
    "Manifest",
    "NoCluster",
    "NotFound",
    "Observer",
    "Ref",
    "Terminating",
    "Throttled",
    "Unavailable",
]
