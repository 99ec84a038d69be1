import pytest

from rljob_api import parse_duration
from rljob_api.v1alpha1 import Rewards


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("1h30m", 5400), ("500ms", 0.5), ("1.5h", 5400), ("0s", 0), ("2m0.25s", 120.25)]
)
def test_a_duration_is_so_many_seconds(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "90", "5 minutes", "-1s", "1d", "1h 30m", "1s\n", "9999999s", "s"])
def test_what_the_api_refuses_is_no_duration(text):
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)
    with pytest.raises(ValueError, match="timeout"):
        Rewards(timeout=text)
