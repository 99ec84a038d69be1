"""Messages, reasons and actions of all situations, in one file that people review."""

from tests.rljob_operator.golden import FILE, render


def test_every_situation_says_and_does_what_the_golden_file_has():
    """Where it is meant: python -m tests.rljob_operator.golden"""
    assert render() == FILE.read_text()
