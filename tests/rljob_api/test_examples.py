"""Every example is a valid RLJob, in a cluster and on one machine."""

import re
from pathlib import Path

import pytest

from rljob_api.show import render_show
from rljob_api.validation import load_rljob, read_documents, validate, with_ranks
from tests.rljob_api import api_server

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))


def example_name(path: Path) -> str:
    """reverse-text, addition/rljob ..."""
    return str(path.relative_to(ROOT / "examples").with_suffix(""))


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=example_name)
def test_an_example_is_valid(path):
    job = load_rljob(path)
    assert validate(render_show(job), "shown.yaml").problems == ()
    for document in read_documents(path.read_text(), str(path))[0]:
        assert document.value["kind"] != "RLJob" or api_server.admit(document.value) == ([], [])


@pytest.mark.parametrize("path", EXAMPLES, ids=example_name)
def test_an_example_runs_with_one_rank_too(path):
    with_ranks(load_rljob(path).spec, 1, gpus=False)


def test_the_guide_shows_the_first_example():
    (shown,) = re.findall(r"(?s)```yaml\n(.*?)```", (ROOT / "docs/training.md").read_text())
    assert shown == (ROOT / "examples/reverse-text.yaml").read_text()
