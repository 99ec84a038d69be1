"""Data files: what is read, and how each kind of broken file is named."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rljob_trainer.data.conversation import ground_truth, read_messages, read_prompt, read_supervised
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
        ("a.csv", b"a,b\n", "unknown extension '.csv'; use .parquet, .jsonl, .json, a folder"),
        ("a.json", b"[{", "cannot read|is not JSON"),
        ("a.json", b"[]", "has no rows"),
        ("a.json", b"[1]", "row 0 is int, not an object"),
        ("a.json", b'{"rows":\n[]}', "line 1 is not JSON"),
        ("*.parquet", None, "no file matches"),
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


def test_an_empty_folder_is_named(tmp_path):
    (tmp_path / "d.parquet").mkdir()
    assert "d.parquet cannot be read" in broken(tmp_path, "d.parquet", None)


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
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "{'type': 'image'} as a part of a message"),
        ({"prompt": [{"role": "user", "content": [{"type": "text", "text": 4}]}]}, "as a part of a message"),
        ({"prompt": [{"role": "assistant", "content": None}]}, "both text"),
        ({"prompt": [{"role": 3, "content": "a"}]}, "both text"),
        ({"tools": "["}, "column 'tools' is not JSON"),
        ({"tools": ["search"]}, "column 'tools' is"),
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


@pytest.mark.parametrize("truth", [{}, {"reward_model": None}, {"reward_model": {"ground_truth": None}}])
def test_without_a_ground_truth_the_reward_gets_none(truth):
    assert ground_truth(truth) is None


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_a_missing_field_of_a_message_stays_missing(tmp_path, name):
    """Parquet writes null for it, and a template asks `'tool_calls' in message`."""
    call = {"type": "function", "function": {"name": "look", "arguments": {"city": "Oslo"}}}
    other = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    chat = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "assistant", "content": "", "tool_calls": [other]},
    ]
    write(tmp_path / name, [{"messages": chat, "tools": [{"a": 1}, {"b": {"c": 2}}]}])
    read = open_rows([name], tmp_path, "f")[0]
    assert (list(read_messages(read, "messages")), read["tools"]) == (chat, [{"a": 1}, {"b": {"c": 2}}])


@pytest.mark.parametrize(("media", "refused"), [([{"bytes": b"x"}], True), ([], False), (None, False)])
def test_images_are_refused_by_name(tmp_path, media, refused):
    write(tmp_path / "a.parquet", [row(images=None), row(images=media)])
    rows = open_rows(["a.parquet"], tmp_path, "spec.data.train")
    if refused:
        with pytest.raises(DataError, match=r"^spec\.data\.train\[0\]: .*column 'images' holds"):
            rows.refuse_media()
    else:
        rows.refuse_media()


SOURCES = {
    "a list in .json": ("all.json", 2),
    "lines in .json": ("lines.json", 1),
    "a pattern": ("parts/*.parquet", 2),
    "a pattern with a folder": ("**/part-?.parquet", 2),
    "a folder": ("split", 3),
    "its test split": ("split?split=test", 1),
    "a saved data set": ("saved", 2),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    import datasets

    folder = tmp_path_factory.mktemp("library")
    (folder / "all.json").write_text(json.dumps([row("a"), row("b")], indent=1))
    (folder / "lines.json").write_text(json.dumps(row("c")))
    for name in ("parts", "split"):
        (folder / name).mkdir()
    for name, words in (("parts/part-2", "b"), ("parts/part-1", "a"), ("split/train", "abc"), ("split/test", "d")):
        write(folder / f"{name}.parquet", [row(word) for word in words])
    datasets.Dataset.from_list([row("x"), row("y")]).save_to_disk(folder / "saved")
    return folder


@pytest.mark.parametrize(("source", "count"), SOURCES.values(), ids=SOURCES)
def test_sources_of_every_kind_are_read(library, monkeypatch, tmp_path, source, count):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    rows = open_rows([source], library, "spec.data.train")
    read = [each for batch in rows.batches() for each in batch]
    words = [each["prompt"][0]["content"] for each in read]
    assert (len(words), words) == (count, sorted(words))
    assert {key: read[0][key] for key in row() if key != "ability"} == {
        key: value for key, value in row(words[0]).items() if key != "ability"
    }


@pytest.mark.parametrize(
    ("source", "field", "message"),
    [
        ("split", "spec.data.validation", None),
        ("split?split=dev", "spec.data.train", "split cannot be read: .*dev"),
        ("split?part=test", "spec.data.train", "unknown argument 'part'; use config, split, revision"),
        ("no/such", "spec.data.train", "no/such is no path here, and the hub's data set cannot be loaded"),
        ("saved?split=test", "spec.data.train", "saved cannot be read"),
    ],
)
def test_the_split_and_what_is_wrong_with_it(library, monkeypatch, source, field, message):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    if message is None:
        assert open_rows([source], library, field)[0]["prompt"][0]["content"] == "d"
        return
    with pytest.raises(DataError, match=message) as caught:
        open_rows([source], library, field)
    assert caught.value.field == f"{field}[0]"


def test_a_look_asks_no_hub(tmp_path):
    assert peek(["openai/gsm8k?config=main"], tmp_path, "f").sources == []


def test_a_supervised_row_is_a_prompt_and_its_response():
    read = read_supervised(row(response="cba"))
    assert (read.messages, read.answer) == (row()["prompt"], {"role": "assistant", "content": "cba"})


def test_the_last_assistant_message_is_the_target():
    turns = [("user", "1"), ("assistant", "2"), ("user", "3"), ("assistant", "4"), ("user", "thanks")]
    messages = [{"role": role, "content": content} for role, content in turns]
    read = read_supervised({"messages": messages})
    assert (read.messages, read.answer) == (messages[:3], messages[3])


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
