"""docs/algorithms.md, and what a docstring of the registries must have."""

from pathlib import Path

import pytest

from rljob_trainer.algorithms_reference import FILE, entry, render


def test_the_page_is_that_of_the_registries():
    assert (Path(__file__).parents[2] / FILE).read_text() == render()


def formula():
    """r A, with r of the token.

    More of it.

    Use it at night.

    Author 2025, Paper: https://arxiv.org/abs/1; Other 2026: https://arxiv.org/abs/2, section 3
    """


def test_a_docstring_has_a_formula_a_use_and_papers():
    found = entry("formula", formula)
    assert (found.formula, found.remarks, found.use) == ("r A, with r of the token.", "More of it.", "At night.")
    assert found.paper == (
        "[Author 2025, Paper](https://arxiv.org/abs/1); [Other 2026](https://arxiv.org/abs/2), section 3"
    )


def test_a_docstring_without_a_use_is_refused():
    with pytest.raises(ValueError, match="the docstring of bare needs one paragraph"):
        entry("bare", test_a_docstring_without_a_use_is_refused)
