"""What a configuration says of a model is refused by name, before anything is loaded."""

import json

import pytest
from transformers import DogeConfig, Gemma3Config, GraniteConfig, LlamaConfig, Phi3Config

from rljob_trainer.errors import DataError, JobError
from rljob_trainer.local.preflight import check
from rljob_trainer.rank.supported import (
    check_quantization,
    check_supported,
    check_token_ids,
    largest_saved_id,
    load_config,
)
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.rank_support import CONFIGS

LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}


def rope(kind, **more):
    return LlamaConfig(rope_parameters={"rope_type": kind, "rope_theta": 1e4, "factor": 2.0} | more)


def longrope(original):
    return Phi3Config(rope_parameters=dict(LONGROPE), original_max_position_embeddings=original)


TOKENIZER = '{"model": {"vocab": {"a": 9}}, "added_tokens": []}'
QUANTIZED = CONFIGS["qwen2"].__class__(quantization_config={"quant_method": "gptq", "bits": 4})
FITS = {"train": ["rows.jsonl"], "maxPromptTokens": 84, "maxResponseTokens": 16}


@pytest.mark.parametrize(
    ("config", "engine", "field", "named"),
    [
        (Gemma3Config(), "hf", "spec.model.path", "multimodal"),
        (LlamaConfig(logits_soft_cap=30.0), "hf", "spec.model.path", "logits_soft_cap"),
        (QUANTIZED, "hf", "spec.model.path", "quantized"),
        (LlamaConfig(max_position_embeddings=99), "hf", "spec.data.maxResponseTokens", "99"),
        (longrope(99), "hf", "spec.data.maxResponseTokens", "longrope"),
        (longrope(99), "vllm", "spec.data.maxResponseTokens", "longrope"),
        (rope("dynamic"), "vllm", "spec.rollout.engine", "dynamic"),
        (DogeConfig(), "vllm", "spec.rollout.engine", "masks"),
    ],
)
def test_what_is_not_computed_is_named(config, engine, field, named):
    with pytest.raises((JobError, DataError)) as refused:
        check_supported(config, make_spec(data=FITS, rollout={"engine": engine}))
    assert refused.value.field == field
    assert named in refused.value.message


def test_fp8_takes_a_gpu():
    fp8 = make_spec(rollout={"engine": "vllm", "quantization": "fp8"})
    check_quantization(fp8, "cuda")
    check_quantization(make_spec(), "cpu")
    with pytest.raises(JobError, match=r"spec\.rollout\.quantization: CPUs"):
        check_quantization(fp8, "cpu")


@pytest.mark.parametrize("engine", ["hf", "vllm"])
@pytest.mark.parametrize(
    "config", [*CONFIGS.values(), longrope(100), rope("linear"), GraniteConfig(logits_scaling=2.0)]
)
def test_what_is_computed_passes(config, engine):
    check_supported(config, make_spec(data=FITS, rollout={"engine": engine}))


def test_dynamic_rotations_do_not_change_within_the_context_that_engine_hf_allows():
    check_supported(rope("dynamic"), make_spec(data=FITS, rollout={"engine": "hf"}))


@pytest.mark.parametrize(("vocabulary", "largest"), [({"a": 0, "b": 6}, 9), ([["a", 0.0]] * 12, 11), ({"a": 12}, 12)])
def test_a_tokenizer_with_more_ids_than_embedding_rows_is_a_data_error(tmp_path, vocabulary, largest):
    saved = {"model": {"vocab": vocabulary}, "added_tokens": [{"id": 7}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(saved))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {"9": {}}}))
    assert largest_saved_id(tmp_path) == largest
    check_token_ids(LlamaConfig(vocab_size=largest + 1), largest)
    with pytest.raises(DataError) as refused:
        check_token_ids(LlamaConfig(vocab_size=largest), largest)
    assert f"{largest + 1} ids" in refused.value.message
    assert f"{largest} rows" in refused.value.message


@pytest.mark.parametrize(("config", "error"), [(Gemma3Config(), JobError), (LlamaConfig(vocab_size=9), DataError)])
def test_rljob_run_asks_before_it_starts_ray(tmp_path, config, error):
    config.save_pretrained(tmp_path)
    files = {"model.safetensors": "", "tokenizer.json": TOKENIZER}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(error):
        check(make_spec(model={"path": str(tmp_path)}), tmp_path)


def test_a_tokenizer_that_says_nothing_is_left_to_the_driver(tmp_path):
    assert largest_saved_id(tmp_path) == -1


@pytest.mark.parametrize(
    "written",
    [{"model_type": "never_heard_of"}, {"model_type": "phi3", "rope_parameters": LONGROPE | {"short_factor": [1.0]}}],
)
def test_a_configuration_that_transformers_refuses_is_a_data_error(tmp_path, written):
    (tmp_path / "config.json").write_text(json.dumps(written))
    with pytest.raises(DataError) as refused:
        load_config(tmp_path, trust_remote_code=False)
    assert refused.value.field == "spec.model.path"
