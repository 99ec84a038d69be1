"""What is behind an error, by the errors that caused it."""

import errno

from rljob_trainer.errors import is_full, is_outage


def caused_by(error, cause):
    error.__cause__ = cause
    return error


def test_an_errors_causes_are_searched():
    full = OSError(errno.ENOSPC, "No space left on device")
    assert is_full(full)
    assert is_full(caused_by(RuntimeError("a"), caused_by(ValueError("b"), full)))
    assert not is_outage(caused_by(RuntimeError("a"), full))
    assert not is_full(None)


def test_causes_that_go_in_a_circle_have_an_end():
    """As Ray's: what a remote call raised and the error that tells of it are each other's cause."""
    cause = RuntimeError("reported by Ray")
    raised = caused_by(ValueError("raised"), cause)
    caused_by(cause, raised)
    assert not is_full(raised)
    assert not is_outage(cause)
