"""What a plan may end in, besides errors of the connection."""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from rljob_operator.head.errors import HeadError
from rljob_operator.kube.errors import AlreadyExists, KubeError


class Refused(Exception):
    """The API server does not accept one of the job's objects, or does not delete one; or it fails at it, which may
    last for a moment only.

    version: the job's resourceVersion by then, for the status that reports it.
    """

    def __init__(self, error: KubeError, version: str) -> None:
        super().__init__(error.message)
        self.error, self.version = error, version


class NotTaken(Exception):
    """Ray does not accept a driver, or does not end one, or does not answer. version: as in Refused."""

    def __init__(self, error: HeadError, version: str) -> None:
        super().__init__(f"{error}")
        self.error, self.version = error, version


@contextmanager
def refusals(version: str, *kinds: type[KubeError]) -> Iterator[None]:
    """kinds: errors about the object alone, which the job's status can report."""
    try:
        yield
    except kinds as error:
        raise Refused(error, version) from error


@contextmanager
def taken(version: str) -> Iterator[None]:
    try:
        yield
    except HeadError as error:
        raise NotTaken(error, version) from error


def name_taken(message: str) -> AlreadyExists:
    return AlreadyExists(message, status=HTTPStatus.CONFLICT, reason="AlreadyExists")
