"""What a plan may end in, besides errors of the connection."""

from collections.abc import Iterator
from contextlib import contextmanager

from rljob_operator.head.errors import HeadError
from rljob_operator.kube.errors import KubeError


class Refused(Exception):
    """The API server does not accept one of the job's objects, or Ray a driver or its end; or they fail at it, which
    may last for a moment only.

    version: the job's resourceVersion by then, for the status that reports it.
    """

    def __init__(self, error: KubeError | HeadError, version: str) -> None:
        super().__init__(f"{error}")
        self.error, self.version = error, version


@contextmanager
def refusals(version: str, *kinds: type[KubeError | HeadError]) -> Iterator[None]:
    """kinds: errors that the job's status can report."""
    try:
        yield
    except kinds as error:
        raise Refused(error, version) from error
