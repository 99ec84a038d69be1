"""HeadError
├── HeadUnreachable   no connection, no answer in time, or 5xx: the same call may work later
└── HeadRefused       any other answer that is no success, or one that cannot be understood
"""


class HeadError(Exception):
    """status: HTTP status of the answer; None if there was none. answer: its text."""

    def __init__(self, message: str, *, status: int | None = None, answer: str = "") -> None:
        super().__init__(message)
        self.status, self.answer = status, answer


class HeadUnreachable(HeadError):
    """There is no server, or it cannot answer. The call may have had its effect."""


class HeadRefused(HeadError):
    """The server refused, or its answer is not of its protocol."""
