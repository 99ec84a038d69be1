"""Tokenizers built from data, and those that come with a model."""

import json
import random

import pytest
from transformers import AutoConfig, AutoTokenizer

from rljob_api.v1alpha1 import Model, RLJobSpec
from rljob_api.v1alpha1.model import Tokenizer as TokenizerSpec
from rljob_trainer.attempt.model_folder import prepare_model_folder
from rljob_trainer.data.chat import ChatFormat
from rljob_trainer.data.tokenizer import build_tokenizer, load_tokenizer, make_tokenizer, training_texts
from rljob_trainer.engines.ends import end_ids
from rljob_trainer.errors import DataError
from tests.rljob_trainer.chat_templates import python_tokenizer
from tests.rljob_trainer.checkpoint_support import make_spec

TEXTS = ["hello world\n\tits  two", "abc äöü 日本 🙂", "  leading, and trailing  ", "1+1=2 <b>"]
SPECS = {
    "character": TokenizerSpec(kind="character"),
    "byte": TokenizerSpec(kind="byte"),
    "bpe": TokenizerSpec(kind="bpe", vocab_size=300),
}


@pytest.fixture(params=SPECS)
def kind(request):
    return request.param


@pytest.fixture
def tokenizer(kind):
    return build_tokenizer(SPECS[kind], TEXTS)


def spec(**changes):
    return RLJobSpec.model_validate(
        {
            "model": {"fromScratch": {}},
            "data": {"train": ["synthetic://reverse-text?rows=200"]},
            "rewards": {"functions": [{"name": "exact", "builtin": "exact_match"}]},
            "training": {"steps": 1},
            **changes,
        }
    )


def test_decoding_gives_back_what_was_encoded(tokenizer):
    rng = random.Random(0)
    pool = sorted(set("".join(TEXTS)))
    texts = TEXTS + ["".join(rng.choices(pool, k=rng.randint(1, 30))) for _ in range(200)]
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_byte_and_bpe_know_every_text():
    for kind in ("byte", "bpe"):
        tokenizer = build_tokenizer(SPECS[kind], ["abc"])
        text = "never seen: ÿ 🚀 한국\x00"
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_a_character_that_the_data_lacks_becomes_the_unknown_token():
    tokenizer = build_tokenizer(SPECS["character"], ["abc"])
    ids = tokenizer.encode("aXc", add_special_tokens=False)
    assert ids[1] == tokenizer.unk_token_id
    assert len(ids) == 3


def test_every_id_of_the_vocabulary_decodes(tokenizer):
    for token in range(len(tokenizer)):
        assert isinstance(tokenizer.decode([token]), str)
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))


def test_sizes_follow_the_kind():
    assert len(build_tokenizer(SPECS["character"], ["abca"])) == 6 + 3
    assert len(build_tokenizer(SPECS["byte"], [])) == 5 + 256
    assert len(build_tokenizer(SPECS["bpe"], TEXTS * 50)) == 300


def test_the_chat_template_marks_roles_and_ends_each_answer(tokenizer):
    chat = [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "two"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    assert text == "<|user|>abc<|assistant|>two<|end|>"
    prompt = tokenizer.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True)
    assert prompt == "<|user|>abc<|assistant|>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids[-1] == tokenizer.eos_token_id
    assert len({ids[0], tokenizer.eos_token_id, tokenizer.pad_token_id}) == 3
    assert tokenizer.decode(ids, skip_special_tokens=True) == "abctwo"


def test_a_saved_tokenizer_is_the_same_after_loading(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.chat_template == tokenizer.chat_template
    assert (loaded.eos_token_id, loaded.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert loaded.encode(text, add_special_tokens=False) == ids
        assert loaded.decode(ids, skip_special_tokens=True) == text


def test_a_model_from_scratch_gets_its_tokenizer_from_all_training_data(tmp_path):
    (tmp_path / "sft.jsonl").write_text('{"prompt": [{"role": "user", "content": "A"}], "response": "B"}\n')
    job = spec(sft={"steps": 1, "data": ["sft.jsonl"]})
    assert {"A", "B", "a", "z"} <= set("".join(training_texts(job, tmp_path)))
    tokenizer = make_tokenizer(job, tmp_path)
    assert len(tokenizer) == 6 + 26 + 2


@pytest.mark.parametrize(
    "odd",
    [
        {"prompt": "text"}, {"prompt": 3}, {"prompt": [3]}, {"messages": 3.5}, {"reward_model": "4"},
        {"response": ["a"]}, {"reward_model": ["4"]}, {"response": "\udfff"},
        {"prompt": [{"role": "user", "content": "\ud800"}]},
    ],
)  # fmt: skip
def test_rows_that_are_wrong_are_left_to_who_reads_them(tmp_path, odd):
    """Who builds the tokenizer comes first, and cannot say which row is wrong."""
    sound = {"prompt": [{"role": "user", "content": "A"}], "response": "B"}
    rows = [sound, sound | odd]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    job = spec(data={"train": ["rows.jsonl"]})
    assert len(make_tokenizer(job, tmp_path)) == 6 + 2


def test_the_spec_may_replace_the_chat_template(tmp_path):
    job = spec(model={"fromScratch": {}, "chatTemplate": "{{ messages[0].content }}>"})
    tokenizer = make_tokenizer(job, tmp_path)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "abc"}], tokenize=False) == "abc>"


def test_a_models_own_tokenizer_is_loaded_from_its_folder(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path / "m")
    assert load_tokenizer(Model(path="m"), tmp_path).get_vocab() == tokenizer.get_vocab()


def test_a_missing_model_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match=r"spec\.model\.path: no tokenizer in no/model: .*give a folder"):
        load_tokenizer(Model(path="no/model"), tmp_path)


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    (tmp_path / "m").mkdir()
    with pytest.raises(DataError, match=r"spec\.model\.path: no tokenizer in"):
        load_tokenizer(Model(path="m"), tmp_path)


def test_a_tokenizer_of_python_code_is_the_same_in_the_runs_folder(tmp_path):
    source, folder = tmp_path / "source", tmp_path / "model"
    source.mkdir()
    python_tokenizer(source)
    AutoConfig.for_model("qwen2", eos_token_id=0).save_pretrained(source)
    model = {"path": str(source), "trustRemoteCode": True}
    tokenizer = load_tokenizer(Model.model_validate(model), tmp_path)
    prepare_model_folder(make_spec(model=model), source, folder, tokenizer)
    loaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    chat = [{"role": "user", "content": "abc"}]
    for each in (tokenizer, loaded):
        [ids] = ChatFormat(each).encode([ChatFormat(each).render(chat)])
        assert (each.decode(ids), len(ids)) == ("<|user|>abc<|assistant|>", 5)
    assert end_ids(folder) == {0}


def test_python_code_without_leave_is_refused(tmp_path):
    python_tokenizer(tmp_path)
    with pytest.raises(DataError) as caught:
        load_tokenizer(Model(path=str(tmp_path)), tmp_path)
    assert caught.value.field == "spec.model.trustRemoteCode"
