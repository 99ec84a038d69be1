"""What a driver says at its end, whatever is in it."""

import json

import pytest

from rljob_api.contract import ExitCode, ExitRecord, last_words

FOUND = "no such file: r\udce9sum\udce9.jsonl"
WRITTEN = "no such file: r?sum?.jsonl"


def test_a_record_tells_of_what_utf_8_cannot_write():
    record = ExitRecord(code=ExitCode.DATA, reason="Data", message=FOUND)
    assert json.loads(record.model_dump_json())["message"] == WRITTEN


def test_so_do_the_last_words_of_a_driver_without_a_record():
    assert last_words(json.dumps({"message": FOUND})) == WRITTEN


@pytest.mark.parametrize("line", ["error: no rows", "no rows", '{"message": "no rows"}'])
def test_last_words_are_those_of_the_last_line(line):
    assert last_words(line) == "no rows"
