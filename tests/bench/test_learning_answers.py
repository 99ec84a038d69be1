"""The answers that the learning benchmark's page shows."""

import json

import pytest

from bench.learning.answers import FILE, answer_tables, keep_answers


@pytest.fixture
def run(tmp_path):
    """A run that was validated before its first step and after its fourth."""
    folder = tmp_path / "run"
    for name in ("attempts", "samples"):
        (folder / name).mkdir(parents=True)
    (folder / "attempts" / "1.json").write_text("{}")
    rows = [
        {"step": step, "prompt": "p", "question": "1 + 1?", "response": response, "groundTruth": "2"}
        for step, response in ((0, "a`b\nc|d"), (4, "2"))
    ]
    (folder / "samples" / "a1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_the_newest_run_of_each_task_is_shown(run, tmp_path):
    keep_answers("other", "c0", run, tmp_path)
    keep_answers("task", "c0", run, tmp_path)
    keep_answers("task", "c1", run, tmp_path)
    assert [*json.loads((tmp_path / FILE).read_text())] == ["other", "task"]
    *_, heading, table = answer_tables(tmp_path)
    assert heading == "task, of commit c1:"
    assert table.splitlines() == [
        "| question | after step 0 | after step 4 | right |",
        "| --- | --- | --- | --- |",
        r"| `1 + 1?` | `a'b c\|d` | `2` | `2` |",
    ]


def test_a_run_without_validations_changes_nothing(tmp_path):
    keep_answers("task", "c0", tmp_path / "none", tmp_path)
    assert list(answer_tables(tmp_path)) == []
