"""Data files: what is read, and how each kind of broken file is named."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rljob_trainer.data.conversation import ground_truth, read_prompt, read_supervised
from rljob_trainer.data.rows import BATCH, BadRow, open_rows, peek
from rljob_trainer.errors import DataError


def row(word="abc", **changes):
    return {
        "data_source": "test",
        "prompt": [{"role": "user", "content": word}],
        "ability": "text",
        "reward_model": {"style": "rule", "ground_truth": word[::-1]},
        "extra_info": {"index": 1},
        **changes,
    }


def write(path, rows):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(value) + "\n" for value in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path.name


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_rows_are_read_as_they_were_written(tmp_path, name):
    write(tmp_path / name, [row("abc"), row("de")])
    rows = open_rows([name], tmp_path, "spec.data.train")
    assert len(rows) == 2
    for key in ("data_source", "prompt", "reward_model", "extra_info"):
        assert rows[1][key] == row("de")[key]


def test_files_follow_each_other_and_are_numbered_through(tmp_path):
    names = [
        write(tmp_path / "a.parquet", [row(f"w{i}") for i in range(BATCH + 3)]),
        write(tmp_path / "b.jsonl", [row("last")]),
    ]
    rows = open_rows(names, tmp_path, "spec.data.train")
    assert [len(batch) for batch in rows.batches()] == [BATCH, 3, 1]
    assert rows[BATCH + 2]["prompt"][0]["content"] == f"w{BATCH + 2}"
    assert rows[BATCH + 3]["prompt"][0]["content"] == "last"
    error = rows.error(BATCH + 3, "oh")
    assert (error.field, error.message) == ("spec.data.train[1]", f"{tmp_path}/b.jsonl: line 1: oh")


def test_blank_lines_are_skipped_and_lines_keep_their_number(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n" + json.dumps(row()) + "\n\n" + json.dumps(row("xyz")) + "\n")
    rows = open_rows(["a.jsonl"], tmp_path, "f")
    assert len(rows) == 2
    assert "line 4: oh" in rows.error(1, "oh").message


def broken(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        list(open_rows([name], tmp_path, "spec.data.train").batches())
    assert caught.value.field == "spec.data.train[0]"
    return caught.value.message


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.parquet", None, "none.parquet does not exist; correct the path"),
        ("a.csv", b"a,b\n", "unknown extension '.csv'; use .parquet or .jsonl"),
        (
            "a.parquet",
            b"not parquet",
            "cannot read .*a.parquet: .*Parquet.*; correct the path, the file or its permissions",
        ),
        ("a.parquet", b"", "cannot read .*a.parquet"),
        ("a.jsonl", b"", "has no rows; remove it from the list, or fill it"),
        ("a.jsonl", b"\n\n", "has no rows"),
        ("a.jsonl", b'{"prompt": 1}\n{"prompt": \n', "line 2 is not JSON: .*; correct the file"),
        ("a.jsonl", b'{"prompt": 1}\n[1, 2]\n', "line 2 is list, not an object"),
        ("a.jsonl", b"\xff\xfe\n", "line 1 is not JSON: .*; correct the file"),
        ("a.jsonl", b"[" * 200_000, "line 1 is not JSON: .*; correct the file"),
    ],
)
def test_a_broken_file_is_named_with_the_remedy(tmp_path, name, content, message):
    assert re.search(message, broken(tmp_path, name, content))


def test_parquet_whose_end_alone_is_whole_is_named(tmp_path):
    write(tmp_path / "a.parquet", [row("abc" * 100)])
    content = (tmp_path / "a.parquet").read_bytes()
    assert "cannot read" in broken(tmp_path, "a.parquet", b"\xff" * 300 + content[300:])


def test_old_ends_of_lines_separate_rows(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\r{"a": 2}\r\n\r\n{"a": 3}')
    rows = open_rows(["a.jsonl"], tmp_path, "f")
    assert [(rows[i]["a"], rows.sources[0].table.where(i)) for i in range(3)] == [
        (1, "line 1"),
        (2, "line 2"),
        (3, "line 4"),
    ]


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_a_home_folder_is_found(tmp_path, monkeypatch, name):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / name, [row()])
    assert len(open_rows([f"~/{name}"], tmp_path / "elsewhere", "f")) == 1


def test_a_look_reads_the_first_row_alone(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(row()) + "\nno JSON\n")
    write(tmp_path / "b.parquet", [row("abc"), row("de")])
    rows = peek(["synthetic://reverse-text?rows=10000000", "a.jsonl", "b.parquet"], tmp_path, "f")
    rows.require("prompt", "extra_info")
    assert [(len(source.table), source.field) for source in rows.sources] == [(1, "f[1]"), (2, "f[2]")]


def test_a_folder_in_place_of_a_file_is_named(tmp_path):
    (tmp_path / "d.parquet").mkdir()
    assert "cannot read" in broken(tmp_path, "d.parquet", None)


def test_a_parquet_file_without_rows_is_named(tmp_path):
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), tmp_path / "a.parquet")
    assert "has no rows" in broken(tmp_path, "a.parquet", None)


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_a_missing_column_is_named_with_those_there_are(tmp_path, name):
    value = row()
    del value["reward_model"]
    write(tmp_path / name, [value])
    with pytest.raises(DataError, match="no column 'reward_model'; it has data_source, prompt, ability, extra_info"):
        open_rows([name], tmp_path, "spec.data.train").require("prompt", "reward_model")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": "abc"}, r"column 'prompt' is 'abc'; it must be a list of \{role, content\}"),
        ({"prompt": []}, "column 'prompt' is \\[\\]"),
        ({"prompt": None}, "column 'prompt' is None"),
        ({"prompt": [{"role": "user"}]}, "each message is {role, content}, both text"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "both text"),
        ({"prompt": [{"role": "user", "content": "\ud800"}]}, "both text in UTF-8"),
        ({"reward_model": "4"}, "column 'reward_model' is '4'; it must be {style, ground_truth}"),
        ({"data_source": 3}, "column 'data_source' is 3; it must be text"),
        ({"extra_info": "x"}, "column 'extra_info' is 'x'; it must be a mapping"),
    ],
)
def test_what_is_wrong_with_a_prompt_is_said(changes, message):
    with pytest.raises(BadRow, match=message):
        read_prompt(row(**changes))


@pytest.mark.parametrize("reward_model", [None, {}, {"style": "rule"}, {"ground_truth": None}, "missing"])
def test_extra_info_and_ground_truth_may_be_missing(reward_model):
    value = row(reward_model=reward_model)
    for column in ("extra_info", *(["reward_model"] if reward_model == "missing" else [])):
        del value[column]
    assert read_prompt(value).messages == row()["prompt"]
    assert ground_truth(value) is None


def test_a_supervised_row_is_a_prompt_and_its_response():
    read = read_supervised(row(response="cba"))
    assert (read.messages, read.response) == (row()["prompt"], "cba")


def test_the_last_assistant_message_is_the_target():
    turns = [("user", "1"), ("assistant", "2"), ("user", "3"), ("assistant", "4"), ("user", "thanks")]
    messages = [{"role": role, "content": content} for role, content in turns]
    read = read_supervised({"messages": messages})
    assert (read.messages, read.response) == (messages[:3], "4")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (row(response=3), "column 'response' is 3; it must be text"),
        (row(response="\udfff"), "it must be text in UTF-8"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "no assistant message"),
        ({"messages": [{"role": "assistant", "content": "hi"}]}, "no assistant message after the first message"),
        (row(), "column 'messages' is None"),
    ],
)
def test_what_is_wrong_with_a_supervised_row_is_said(value, message):
    with pytest.raises(BadRow, match=message):
        read_supervised(value)


@pytest.mark.parametrize("name", ["s3://bucket/rows.parquet", "hf://datasets/rows"])
def test_a_url_is_no_file(tmp_path, name):
    with pytest.raises(DataError, match=rf"^spec\.data\.train\[0\]: {name} is a URL; download it"):
        open_rows([name], tmp_path, "spec.data.train")
