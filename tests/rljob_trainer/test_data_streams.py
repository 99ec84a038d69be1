"""From a spec to prompts and examples: token ids, lengths, ids, and a stream that resumes."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog

from rljob_api.v1alpha1 import Data, RLJobSpec
from rljob_api.v1alpha1.model import Tokenizer as TokenizerSpec
from rljob_trainer.data.prompts import load_prompts
from rljob_trainer.data.stream import PromptStream, SupervisedStream
from rljob_trainer.data.supervised import load_supervised
from rljob_trainer.data.tokenizer import build_tokenizer
from rljob_trainer.errors import DataError

WORDS = ["abc", "a", "abcdefgh", "bc", "cab"]


@pytest.fixture
def tokenizer():
    return build_tokenizer(TokenizerSpec(), ["abcdefgh"])


def row(word):
    return {
        "data_source": "test",
        "prompt": [{"role": "user", "content": word}],
        "reward_model": {"style": "rule", "ground_truth": word[::-1]},
        "extra_info": {"length": len(word)},
        "response": word[::-1],
    }


@pytest.fixture
def folder(tmp_path):
    pq.write_table(pa.Table.from_pylist([row(word) for word in WORDS]), tmp_path / "train.parquet")
    return tmp_path


def data(**changes):
    return Data.model_validate({"train": ["train.parquet"], "maxPromptTokens": 32, "maxResponseTokens": 32, **changes})


def job(**changes):
    settings = {"train": ["train.parquet"], "maxPromptTokens": 32, "maxResponseTokens": 32, **changes}
    return RLJobSpec.model_validate(
        {
            "model": {"fromScratch": {}},
            "data": settings,
            "algorithm": {"preset": "sft"},
            "training": {"steps": 1},
        }
    )


def test_a_prompt_is_the_row_through_the_chat_template(folder, tokenizer):
    prompt = load_prompts(data(), tokenizer, folder).item(0, 3)
    assert prompt.id == "3/0"
    assert prompt.text == "<|user|>abc<|assistant|>"
    assert prompt.token_ids.tolist() == tokenizer.encode("<|user|>abc<|assistant|>", add_special_tokens=False)
    assert prompt.token_ids.dtype == np.int32
    assert (prompt.data_source, prompt.ground_truth, prompt.extra_info) == ("test", "cba", {"length": 3})


def test_long_prompts_are_left_out_and_counted_and_ids_keep_the_files_row(folder, tokenizer):
    with structlog.testing.capture_logs() as logs:
        dataset = load_prompts(data(maxPromptTokens=5), tokenizer, folder)
    assert [(each["event"], each["rows"], each["filtered"]) for each in logs] == [("rows_tokenized", 4, 1)]
    assert [prompt.id for prompt in dataset.all("validation")] == [f"validation/{i}" for i in (0, 1, 3, 4)]
    assert [prompt.ground_truth for prompt in dataset.all(0)] == ["cba", "a", "cb", "bac"]


def test_a_prompt_of_exactly_the_limit_stays(folder, tokenizer):
    assert [len(load_prompts(data(maxPromptTokens=limit), tokenizer, folder)) for limit in (10, 9)] == [5, 4]


def test_long_prompts_may_be_an_error(folder, tokenizer):
    with pytest.raises(DataError, match=r"train\[0\]: .*row 2: the prompt has 10 tokens, data.maxPromptTokens is 5"):
        load_prompts(data(maxPromptTokens=5, overlongPrompts="fail"), tokenizer, folder)


def test_a_data_set_without_a_prompt_that_fits_is_an_error(folder, tokenizer):
    with pytest.raises(DataError, match="all 5 rows are longer than maxPromptTokens"):
        load_prompts(data(maxPromptTokens=2), tokenizer, folder)


def test_a_malformed_row_is_named_with_file_and_row(folder, tokenizer):
    rows = [row("a"), row("b"), {**row("c"), "data_source": None}]
    (folder / "bad.jsonl").write_text("".join(json.dumps(value) + "\n" for value in rows))
    with pytest.raises(DataError, match=r"spec.data.train\[1\]: .*bad.jsonl: line 3: column 'data_source' is None"):
        load_prompts(data(train=["train.parquet", "bad.jsonl"]), tokenizer, folder)


def test_validation_reads_its_own_files_and_names_its_own_field(folder, tokenizer):
    dataset = load_prompts(data(validation=["synthetic://reverse-text?rows=7"]), tokenizer, folder, "validation")
    assert len(dataset) == 7
    with pytest.raises(DataError, match=r"spec.data.validation\[0\]: no file"):
        load_prompts(data(validation=["none.jsonl"]), tokenizer, folder, "validation")


def test_a_template_that_refuses_a_row_names_it(folder, tokenizer):
    (folder / "tool.jsonl").write_text(json.dumps({**row("a"), "prompt": [{"role": "tool", "content": "a"}]}))
    with pytest.raises(DataError, match="line 1: the chat template refuses the conversation: roles are system, user"):
        load_prompts(data(train=["tool.jsonl"]), tokenizer, folder)


def test_a_broken_template_and_a_missing_one_name_their_field(folder, tokenizer):
    tokenizer.chat_template = "{% for %}"
    with pytest.raises(DataError, match=r"spec\.model\.chatTemplate: line 1"):
        load_prompts(data(), tokenizer, folder)
    tokenizer.chat_template = None
    with pytest.raises(DataError, match=r"spec\.model\.chatTemplate: the tokenizer has no chat template"):
        load_prompts(data(), tokenizer, folder)


def test_a_resumed_stream_gives_the_same_prompts(folder, tokenizer):
    def stream():
        return PromptStream(load_prompts(data(), tokenizer, folder), seed=5)

    whole, first = stream(), stream()
    expected = [prompt.id for _ in range(4) for prompt in whole.next(3)]
    before = [prompt.id for prompt in first.next(3) + first.next(3)]
    second = stream()
    second.load_state_dict(first.state_dict())
    assert before + [prompt.id for prompt in second.next(3) + second.next(3)] == expected
    assert len(set(expected[:5])) == 5


def test_a_bounded_stream_ends_with_a_short_batch(folder, tokenizer):
    stream = PromptStream(load_prompts(data(), tokenizer, folder), seed=0, epochs=1)
    assert (len(stream.next(3)), stream.exhausted, len(stream.next(3)), stream.exhausted) == (3, False, 2, True)


@pytest.mark.parametrize("change", ["ground_truth", "word", "order"])
def test_a_resume_on_changed_data_is_refused(folder, tokenizer, change):
    state = PromptStream(load_prompts(data(), tokenizer, folder), seed=0).state_dict()
    rows = [row(word) for word in WORDS]
    if change == "ground_truth":
        rows[1]["reward_model"]["ground_truth"] = "b"
    elif change == "word":
        rows[1]["prompt"][0]["content"] = "b"
    else:
        rows.reverse()
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")
    with pytest.raises(DataError, match="the data changed since the checkpoint"):
        PromptStream(load_prompts(data(), tokenizer, folder), seed=0).load_state_dict(state)


def test_the_fingerprint_is_the_same_from_parquet_and_jsonl(folder, tokenizer):
    (folder / "train.jsonl").write_text("".join(json.dumps(row(word)) + "\n" for word in WORDS))
    one = load_prompts(data(), tokenizer, folder).fingerprint
    assert load_prompts(data(train=["train.jsonl"]), tokenizer, folder).fingerprint == one


def test_an_example_is_prompt_response_and_end(folder, tokenizer):
    example = SupervisedStream(load_supervised(job(), tokenizer, folder), seed=0, shuffle=False).next(1)[0]
    assert example.id == "0/0"
    assert tokenizer.decode(example.token_ids.tolist()) == "<|user|>abc<|assistant|>cba<|end|>"
    assert tokenizer.decode(example.token_ids[example.prompt_tokens :].tolist()) == "cba<|end|>"


def test_conversations_are_examples_too(folder, tokenizer):
    turns = [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    messages = [{"role": role, "content": content} for role, content in turns]
    (folder / "chat.jsonl").write_text(json.dumps({"messages": messages}))
    example = load_supervised(job(train=["chat.jsonl"]), tokenizer, folder).item(0, 0)
    text = tokenizer.decode(example.token_ids.tolist())
    assert text == "<|user|>a<|assistant|>b<|end|><|user|>c<|assistant|>d<|end|>"
    assert tokenizer.decode(example.token_ids[: example.prompt_tokens].tolist()).endswith("<|user|>c<|assistant|>")


def test_long_responses_are_left_out_with_their_end_token_counted(folder, tokenizer):
    assert [len(load_supervised(job(maxResponseTokens=limit), tokenizer, folder)) for limit in (9, 8)] == [5, 4]


def test_supervised_data_without_a_target_column_is_refused(folder, tokenizer):
    rows = [{key: value for key, value in row("abc").items() if key != "response"}]
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")
    with pytest.raises(DataError, match=r"spec.data.train\[0\]: .*needs the columns prompt and response, or messages"):
        load_supervised(job(), tokenizer, folder)
