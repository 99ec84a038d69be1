"""The fused decode step against transformers' own forward pass."""

from unittest.mock import patch

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
from transformers.cache_utils import DynamicCache

from rljob_trainer.engines.hf.attention import GROUPED, attend
from rljob_trainer.engines.hf.decoder import Decoder, FusedDecoder, PlainDecoder, make_decoder
from rljob_trainer.engines.hf.slots import SlotCache

VOCAB, CAPACITY = 60, 24
LENGTHS = torch.tensor([5, 2, 9])
MASK = torch.zeros(3, 5).masked_fill_(torch.arange(5) > torch.tensor([[1], [4], [2]]), -torch.inf)[:, None, None]
SMALL = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip

FUSED = {
    "llama": LlamaConfig(**SMALL),
    "llama with biases": LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True),
    "llama 3 rotations": LlamaConfig(**SMALL, rope_parameters=LLAMA3),
    "mistral": MistralConfig(**SMALL, sliding_window=None),
    "qwen2": Qwen2Config(**SMALL),
    "qwen3, heads wider than the model": Qwen3Config(**SMALL, head_dim=32),
}

PLAIN = {
    "gemma2": Gemma2Config(**SMALL, head_dim=16),
    "rotations by length": LlamaConfig(
        **SMALL, rope_parameters={"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    ),
}


def model_of(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=GROUPED).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.copy_(torch.randn_like(parameter) * 0.2 + (1 if parameter.dim() == 1 else 0))
    return model


def decoder_of(model) -> Decoder:
    decoder = make_decoder(model)
    assert decoder is not None
    return decoder


@torch.no_grad()
def four_steps(model, decoder: Decoder) -> torch.Tensor:
    """Logits [4, rows, VOCAB] of four tokens after prompts of different lengths."""
    torch.manual_seed(1)
    prompts, tokens = torch.randint(VOCAB, (3, int(LENGTHS.max()))), torch.randint(VOCAB, (4, 3))
    prefix = DynamicCache()
    model(prompts, past_key_values=prefix, use_cache=True)
    cache = SlotCache(model.config.num_hidden_layers)
    cache.fit(4, CAPACITY)
    cache.admit(prefix, 0, torch.arange(3))
    decoder.bind()
    logits = []
    for step, ids in enumerate(tokens):
        positions = LENGTHS + step
        longest = int(positions.max()) + 1
        cache.expect(positions, longest)
        logits.append(decoder.step(ids, positions, cache))
    return torch.stack(logits)


@pytest.mark.parametrize("name", FUSED)
def test_logits_are_those_of_transformers(name):
    model = model_of(FUSED[name])
    plain = four_steps(model, PlainDecoder(model))
    assert plain.std() > 0.1
    decoder = decoder_of(model)
    assert isinstance(decoder, FusedDecoder)
    torch.testing.assert_close(four_steps(model, decoder), plain, rtol=1e-4, atol=1e-4)


class Operations(TorchDispatchMode):
    """Counts what PyTorch is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += 1
        return operation(*args, **(kwargs or {}))


def operations_of(decoder: Decoder, model) -> int:
    """Of four steps; the others are the test's own and the same for every decoder."""
    with Operations() as whole:
        four_steps(model, decoder)
    with Operations() as rest, patch.object(decoder, "step", lambda ids, *_: torch.zeros(len(ids), VOCAB)):
        four_steps(model, decoder)
    return whole.count - rest.count


@pytest.mark.parametrize("name", FUSED)
def test_a_step_takes_two_thirds_of_the_operations_or_less(name):
    model = model_of(FUSED[name])
    fused, plain = operations_of(decoder_of(model), model), operations_of(PlainDecoder(model), model)
    assert 0 < fused < 0.7 * plain


@pytest.mark.parametrize("mask", [None, MASK, MASK == 0], ids=["no mask", "additive", "boolean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_rows_attend_as_in_pytorch(dtype, mask):
    query, key, value = (torch.randn(3, 2, rows, 8, dtype=dtype) for rows in (4, 5, 5))
    if mask is not None and mask.is_floating_point():
        mask = mask.to(dtype)
    for scale in (None, 0.3):
        expected = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
        torch.testing.assert_close(attend(query, key, value, mask, scale), expected)


@pytest.mark.parametrize("name", PLAIN)
def test_other_models_are_left_to_transformers(name):
    assert isinstance(decoder_of(model_of(PLAIN[name])), PlainDecoder)


def test_weights_that_are_written_into_the_model_are_used():
    model = model_of(FUSED["qwen2"])
    decoder = decoder_of(model)
    before = four_steps(model, decoder)
    for tensor in model.state_dict().values():
        tensor.mul_(0.8)
    after = four_steps(model, decoder)
    assert (after - before).abs().max() > 0.1
    torch.testing.assert_close(after, four_steps(model, PlainDecoder(model)), rtol=1e-4, atol=1e-4)


def test_a_model_that_was_elsewhere_is_bound_anew():
    model = model_of(FUSED["qwen3, heads wider than the model"])
    decoder = decoder_of(model)
    before = four_steps(model, decoder)
    decoder.release()
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()  # as a move to another device and back
    for parameter in model.parameters():
        parameter.mul_(0.8)
    after = four_steps(model, decoder)
    assert (after - before).abs().max() > 0.1
    torch.testing.assert_close(after, four_steps(model, PlainDecoder(model)), rtol=1e-4, atol=1e-4)
