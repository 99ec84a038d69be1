"""Every example is a valid RLJob, in a cluster and on one machine."""

import re
from pathlib import Path

import pytest
import yaml

from rljob_api.show import render_show
from rljob_api.validation import load_rljob, read_documents, validate, with_ranks
from tests.rljob_api import api_server
from tests.rljob_api.example_files import EXAMPLES, FILES, example_name

ROOT = Path(__file__).parents[2]


def test_there_are_examples():
    assert FILES


@pytest.mark.parametrize("path", FILES, ids=example_name)
def test_an_example_is_valid(path):
    job = load_rljob(path)
    assert validate(render_show(job), "shown.yaml").problems == ()
    for document in read_documents(path.read_text(), str(path))[0]:
        assert document.value["kind"] != "RLJob" or api_server.admit(document.value) == ([], [])


@pytest.mark.parametrize("path", FILES, ids=example_name)
def test_an_example_runs_with_one_rank_too(path):
    with_ranks(load_rljob(path).spec, 1, gpus=False)


def test_the_guide_shows_the_first_example():
    shown, *_ = re.findall(r"(?s)```yaml\n(.*?)```", (ROOT / "docs/training.md").read_text())
    assert shown == (EXAMPLES / "reverse-text.yaml").read_text()


def test_the_queued_example_is_the_first_one_with_labels():
    first, queued = (
        yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text()) for name in ("reverse-text", "kueue/rljob")
    )
    assert queued["spec"] == first["spec"]
