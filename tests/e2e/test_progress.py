"""What takes long shows that it goes on, and how it ended."""

import pytest

from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import Progress, shown


@pytest.fixture
def impatient(monkeypatch):
    """Progress is shown at once, and then not again."""
    monkeypatch.setattr(Progress, "_next", lambda self: 0.0 if self.shown is None else 60.0)


def test_what_takes_long_is_shown_until_it_is_over(impatient, capsys):
    with shown("building an image"):
        pass
    assert capsys.readouterr().err == "building an image: 0 s\nbuilding an image: done after 0 s\n"


def test_what_is_brief_has_one_line(capsys):
    with shown("building an image"):
        pass
    assert capsys.readouterr().err == "building an image: done after 0 s\n"


def test_what_was_there_is_not_told(capsys):
    with shown("building an image") as progress:
        progress.unchanged = True
    assert capsys.readouterr().err == ""


def test_what_was_shown_has_an_end_also_where_it_was_there(impatient, capsys):
    with shown("building an image") as progress:
        progress.unchanged = True
    assert capsys.readouterr().err == "building an image: 0 s\nbuilding an image: unchanged after 0 s\n"


def test_what_fails_is_not_called_done(capsys):
    with pytest.raises(ClusterError, match="no space"), shown("building an image"):
        raise ClusterError("no space")
    assert capsys.readouterr().err == "building an image: failed after 0 s\n"
