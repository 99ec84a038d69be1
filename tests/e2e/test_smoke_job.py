"""The job that tries an image is one that the API takes."""

import json

from rljob_api.validation import load_rljob
from runtime_image import smoke


def test_it_is_valid(tmp_path):
    file = tmp_path / "job.json"
    file.write_text(json.dumps(smoke.JOB))
    assert load_rljob(file).metadata.name == "smoke"
