"""HeadError
├── HeadUnreachable   no connection, no answer in time, or 5xx: the same call may work later
└── HeadRefused       any other answer that is no success, or one that cannot be understood
"""


class HeadError(Exception):
    """status: HTTP status of the answer; None where there was none. answer: its text."""

    def __init__(self, message: str, *, status: int | None = None, answer: str = "") -> None:
        super().__init__(message)
        self.status, self.answer = status, answer


class HeadUnreachable(HeadError):
    """Nobody is there or able to answer. The call may have had its effect all the same."""


class HeadRefused(HeadError):
    """The server said no, or something that is not its protocol."""
