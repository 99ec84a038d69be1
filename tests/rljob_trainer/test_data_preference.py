"""Rows with a chosen and a rejected answer, as pairs of trajectories."""

import json
from pathlib import Path
from typing import Any

import pytest

from rljob_api.v1alpha1 import Data, RLJobSpec
from rljob_api.v1alpha1.model import Tokenizer as TokenizerSpec
from rljob_trainer.data.prompts import PromptDataset, load_prompts
from rljob_trainer.data.stream import SupervisedStream
from rljob_trainer.data.supervised import load_supervised
from rljob_trainer.data.tokenizer import build_tokenizer
from rljob_trainer.errors import DataError

ASK = [{"role": "user", "content": "abc"}]


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def pairs(folder: Path, *rows: dict[str, Any], **data: Any) -> Any:
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"train": ["pairs.jsonl"], "maxPromptTokens": 8, "maxResponseTokens": 4, **data}
    blocks = {"model": {"fromScratch": {}}, "data": settings, "algorithm": {"preset": "dpo"}, "training": {"steps": 1}}
    return load_supervised(RLJobSpec.model_validate(blocks), build_tokenizer(TokenizerSpec(), ["abcd"]), folder)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": ASK, "chosen": "cba", "rejected": "d"},
        {"prompt": ASK, "chosen": [said("cba")], "rejected": [said("d")]},
        {"chosen": [*ASK, said("cba")], "rejected": [*ASK, said("d")]},
    ],
)
def test_texts_messages_and_conversations_give_the_same_pair(row: dict[str, Any], tmp_path: Path):
    tokenizer = build_tokenizer(TokenizerSpec(), ["abcd"])
    (example,) = SupervisedStream(pairs(tmp_path, row), seed=0).next(1)
    assert example.id == "0/0"
    shown = [tokenizer.decode(each.token_ids[each.in_loss]) for each in example.rows]
    asked = [tokenizer.decode(each.token_ids[~each.in_loss]) for each in example.rows]
    end = tokenizer.eos_token
    assert (shown, len(set(asked))) == ([f"cba{end}", f"d{end}"], 1)


def test_a_pair_of_which_one_answer_is_too_long_is_left_out(tmp_path: Path):
    row = {"prompt": ASK, "chosen": "a", "rejected": "b"}
    long = [row | {"chosen": "abcdabcd"}, row | {"rejected": "abcdabcd"}]
    dataset = pairs(tmp_path, long[0], row, long[1])
    assert (len(dataset), dataset.item(0, 2).id) == (1, "2/1")
    with pytest.raises(DataError, match="both fit; raise the limits"):
        pairs(tmp_path, *long)


def test_any_changed_answer_changes_the_fingerprint(tmp_path: Path):
    row = {"prompt": ASK, "chosen": "a", "rejected": "b"}
    changed = [row, row | {"chosen": "c"}, row | {"rejected": "c"}, {**row, "chosen": "b", "rejected": "a"}]
    assert len({pairs(tmp_path, each).fingerprint for each in changed}) == 4


def test_a_prompt_comes_with_its_row_s_response_if_samples_are_compared_with_it(tmp_path: Path):
    tokenizer = build_tokenizer(TokenizerSpec(), ["abcd"])
    row = {"data_source": "s", "prompt": ASK, "response": "cba"}

    def load(*rows: dict[str, Any], responses: bool = True) -> PromptDataset:
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        data = Data.model_validate({"train": ["rows.jsonl"], "maxPromptTokens": 8, "maxResponseTokens": 4})
        return load_prompts(data, tokenizer, tmp_path, responses=responses)

    (plain,), (task,) = load(row, responses=False).all(0), load(row, row | {"response": "abcda"}).all(0)
    assert plain.response is None
    assert task.token_ids.tolist() == plain.token_ids.tolist()
    assert task.response is not None
    assert tokenizer.decode(task.response) == f"cba{tokenizer.eos_token}"
    with pytest.raises(DataError, match="column 'response' is None; preset spin needs text"):
        load(row, row | {"response": None})
    with pytest.raises(DataError, match="no column 'response'"):
        load({name: row[name] for name in ("data_source", "prompt")})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": ASK, "chosen": "a"}, "no column 'rejected'; it has"),
        ({"prompt": ASK, "chosen": "a", "rejected": ASK}, "ends with a message of 'user'"),
        ({"prompt": ASK, "chosen": [*ASK, said("a")], "rejected": "b"}, "has 2 messages beside a prompt"),
        ({"chosen": [*ASK, said("a")], "rejected": [said("b")]}, "must begin with the same prompt"),
        ({"prompt": ASK, "chosen": 7, "rejected": "b"}, "column 'chosen' is 7"),
    ],
)
def test_a_row_that_is_no_pair_is_named(row: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(DataError, match=message):
        pairs(tmp_path, row)
