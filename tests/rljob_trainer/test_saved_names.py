"""Engines that read checkpoints get what save_pretrained writes, a layer at a time."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from bench.models.architectures import config_of
from rljob_trainer.weights.saved_names import all_weights, as_saved


@pytest.mark.parametrize(
    "name", ["llama", "qwen3_moe", "mixtral, jitter", "deepseek_v3", "gpt_oss", "glm4_moe", "phi3, window"]
)
def test_names_and_shapes_are_those_of_a_checkpoint(name, tmp_path):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_of(name))
    model.save_pretrained(tmp_path)
    expected, sent = load_file(tmp_path / "model.safetensors"), dict(as_saved(model, all_weights(model)))
    assert sent.keys() == expected.keys()
    assert all(torch.equal(sent[key], tensor) for key, tensor in expected.items())


def test_buffers_that_a_checkpoint_holds_are_weights():
    model = AutoModelForCausalLM.from_config(config_of("deepseek_v3"))
    names = [name for name, _ in all_weights(model)]
    assert set(names) == model.state_dict().keys()
    assert len(set(names)) == len(names)
    assert any(name.endswith("e_score_correction_bias") for name in names)
