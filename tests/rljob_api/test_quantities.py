"""Kubernetes' quantities."""

from fractions import Fraction

import pytest

from rljob_api.quantities import parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8), ("0.5", Fraction(1, 2)), ("500m", Fraction(1, 2)), ("2k", 2000), ("2Ki", 2048), ("1.5Gi", 1610612736),
     ("16G", 16 * 10**9), ("16Gi", 17179869184), ("1T", 10**12), ("1Pi", 1125899906842624),
     ("9007199254740993.5", Fraction(18014398509481987, 2))],
)  # fmt: skip
def test_a_quantity_is_an_exact_number(text, value):
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "8GB", "-1", "1e3", ".5", "1 Gi", "1mi"])
def test_what_the_api_does_not_accept_is_none(text):
    with pytest.raises(ValueError, match="is no quantity"):
        parse_quantity(text)
