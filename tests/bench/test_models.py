"""Architectures agree with transformers in each engine, or are refused by name. A third of docs/models.md a day."""

import datetime
import importlib.util

import pytest

from bench.models.architectures import ARCHITECTURES
from bench.models.compare import compare
from bench.models.page import page

DAY = datetime.datetime.now(datetime.UTC).date().toordinal()
KINDS = [
    "mistral, window", "mixtral, jitter", "qwen3_moe, window", "gemma3_text", "gpt2", "deepseek_v3, narrow values",
    "gpt_oss", "qwen3_5_text", "llama4_text, chunks", "bloom",
]  # fmt: skip
"""A window, jitter, fused experts, layers of two kinds, another layout, values narrower than keys, sinks, states,
chunks, attention that transformers' interface does not reach."""


@pytest.mark.parametrize("name", KINDS)
def test_engine_hf_and_the_trainer_compute_what_transformers_does(name, tmp_path):
    found = compare(name, "hf", tmp_path)
    assert found.refused is None
    assert (found.engine, found.trainer) == (pytest.approx(0, abs=2e-5), pytest.approx(0, abs=2e-5))


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_the_page_names_what_agrees_and_what_is_refused(name, tmp_path):
    found = compare(name, "hf", tmp_path)
    for engine in ("hf", "vllm"):
        row = page({name: {engine: found}}).split("|---|---|---|---|\n")[1]
        assert (found.refused or f"{found.engine:.0e}") in row


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["hf", "vllm"])
@pytest.mark.parametrize("name", list(ARCHITECTURES)[DAY % 3 :: 3])
def test_every_architecture_agrees_or_is_refused(name, engine, tmp_path):
    if engine == "vllm" and importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    found = compare(name, engine, tmp_path)
    assert found.right, found
