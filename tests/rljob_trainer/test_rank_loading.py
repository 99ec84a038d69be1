"""From spec.model to weights on a rank, and what is refused on the way."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BertConfig, GPT2Config, T5Config

from rljob_api.v1alpha1.model import Tokenizer
from rljob_trainer.attempt.model_folder import prepare_model_folder
from rljob_trainer.data.tokenizer import build_tokenizer
from rljob_trainer.errors import DataError, JobError
from rljob_trainer.rank.loading import empty_model, full_weights
from rljob_trainer.rank.model_source import FIELD, local_folder, locate_model
from rljob_trainer.rank.sharding import decoder_layers
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.rank_support import CONFIGS, VOCAB, alone, parameters, random_trajectories, write_model


def model_spec(path, **changes):
    return make_spec(model={"path": str(path), **changes}).model


def scratch_spec(**changes):
    sizes = {"layers": 1, "hiddenSize": 64, "heads": 2, **changes}
    return make_spec(model={"fromScratch": sizes})


# ---------------------------------------------------------------------- the folder


def test_a_relative_folder_starts_at_the_job_file(tmp_path):
    write_model(tmp_path / "models" / "tiny")
    (tmp_path / "models" / "tiny" / "tokenizer.json").touch()
    assert locate_model(model_spec("models/tiny"), tmp_path) == tmp_path / "models" / "tiny"


@pytest.mark.parametrize("path", ["./nothing", "/nowhere/model", "~/nothing", "no name", "a/b/c"])
def test_a_missing_folder_is_named(path, tmp_path):
    with pytest.raises(DataError, match=rf"^spec\.model\.path: no folder {path}: correct the path"):
        locate_model(model_spec(path), tmp_path)


@pytest.mark.parametrize("name", ["org/model", "nothing"])
def test_a_hub_that_cannot_be_reached_is_explained(name, tmp_path):
    """Nor can anybody tell a model such as gpt2 from a folder that is missing."""
    with pytest.raises(
        DataError, match=rf"^spec\.model\.path: {name} is neither a folder here nor .* HF_TOKEN"
    ) as found:
        locate_model(model_spec(name), tmp_path)
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 400


def test_what_may_be_on_the_hub_is_looked_for_here_first(tmp_path):
    assert local_folder("gpt2", tmp_path, FIELD) is None
    (tmp_path / "gpt2").mkdir()
    assert local_folder("gpt2", tmp_path, FIELD) == tmp_path / "gpt2"


def test_a_folder_without_configuration_or_weights_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no config\.json"):
        locate_model(model_spec("."), tmp_path)
    CONFIGS["qwen2"].save_pretrained(tmp_path)
    with pytest.raises(DataError, match="no weights"):
        locate_model(model_spec("."), tmp_path)
    write_model(tmp_path)
    with pytest.raises(DataError, match=r"no tokenizer \(tokenizer\.json\): save the model's own beside it"):
        locate_model(model_spec("."), tmp_path)


# ---------------------------------------------------------------------- the model


def test_a_model_that_transformers_does_not_know_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "newer"}')
    tokenizer = build_tokenizer(Tokenizer(kind="byte"), [])
    refusal = r"^spec\.model\.path: .*`newer`"
    with pytest.raises(DataError, match=refusal) as no:
        prepare_model_folder(make_spec(model={"path": str(tmp_path)}), tmp_path, tmp_path / "model", tokenizer)
    assert "\n" not in str(no.value)


def test_models_that_cannot_be_trained_are_refused(tmp_path):
    T5Config().save_pretrained(tmp_path / "t5")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "never_heard_of"}))
    for folder in (tmp_path / "t5", tmp_path):
        with pytest.raises(DataError, match=r"^spec\.model\.path: transformers cannot load it"):
            empty_model(folder, model_spec(folder))


def test_an_encoder_is_refused(tmp_path):
    """Its tokens see those behind them."""
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=VOCAB, initializer_range=0.5, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(JobError, match=r"^spec\.model\.path: .*decoder-only"):
        alone(make_spec(), lambda worker: worker.load(str(tmp_path)))


def test_fsdp_gathers_the_blocks_wherever_they_are():
    model = AutoModelForCausalLM.from_config(GPT2Config(n_layer=2, n_embd=32, n_head=2))
    assert decoder_layers(model) == list(model.transformer.h)


def test_flash_attention_2_is_refused_on_a_cpu(tmp_path):
    spec = make_spec(model={"path": "m", "attention": "flash_attention_2"})
    with pytest.raises(JobError, match=r"^spec\.model\.attention: flash_attention_2 needs a GPU"):
        alone(spec, lambda worker: worker.load(write_model(tmp_path)))


def test_dropout_is_left_out(tmp_path):
    config = CONFIGS["llama"].__class__(**CONFIGS["llama"].to_dict() | {"attention_dropout": 0.5})
    config.save_pretrained(tmp_path)
    made = empty_model(tmp_path, model_spec(tmp_path, attention="sdpa"))
    assert made.config.attention_dropout == 0.0
    assert {layer.self_attn.attention_dropout for layer in made.model.layers} == {0.0}


# ---------------------------------------------------------------------- the weights


@pytest.mark.parametrize("name", ["llama", "tied"])
def test_bfloat16_files_become_float32_masters(tmp_path, name):
    write_model(tmp_path, name, dtype=torch.bfloat16)
    stored = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    loaded = alone(make_spec(), lambda worker: (worker.load(str(tmp_path)), parameters(worker))[1])
    assert loaded.keys() == stored.keys()
    assert all(loaded[key].dtype == torch.float32 for key in loaded)
    assert all(torch.equal(loaded[key], stored[key].float()) for key in stored)


def test_tied_embeddings_stay_tied(tmp_path):
    write_model(tmp_path, "tied")
    same, moved = alone(make_spec(), update_tied, str(tmp_path))
    assert same
    assert moved


def update_tied(worker, folder):
    sequences = random_trajectories(3)
    before = (worker.load(folder), worker.log_probs(sequences))[1]
    model = worker.policy.network
    same = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(0.5)
    after = worker.log_probs(sequences)
    return same, np.abs(np.concatenate(before) - np.concatenate(after)).max() > 0.1


def test_weights_that_are_not_all_there_are_refused(tmp_path):
    """transformers would draw the missing ones at random and go on."""
    write_model(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    del stored["model.layers.1.mlp.up_proj.weight"], stored["lm_head.weight"]
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"^spec\.model\.path: its weights lack lm_head\.weight and 1 more"):
        full_weights(tmp_path, model_spec(tmp_path), 0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(tmp_path, value):
    write_model(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    stored["lm_head.weight"][0, 0] = value
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"^spec\.model\.path: its lm_head\.weight "):
        full_weights(tmp_path, model_spec(tmp_path), 0)


def test_damaged_weights_are_refused(tmp_path):
    write_model(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"^spec\.model\.path: its weights cannot be loaded"):
        full_weights(tmp_path, model_spec(tmp_path), 0)


def test_a_model_from_scratch_follows_its_seed(tmp_path):
    spec = scratch_spec()
    CONFIGS["qwen2"].save_pretrained(tmp_path)
    state = torch.random.get_rng_state()
    first, again, other = (full_weights(tmp_path, spec.model, seed) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])
    assert torch.equal(state, torch.random.get_rng_state())


def test_weights_of_another_shape_are_refused(tmp_path):
    write_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    shapes = rf"has shape \[\d+, {config['intermediate_size']}\], but config\.json says \[\d+, 64\]"
    with pytest.raises(DataError, match=rf"^spec\.model\.path: its model\.layers\.0\.mlp\.\w+\.weight {shapes}"):
        full_weights(tmp_path, model_spec(tmp_path), 0)


def test_every_architecture_of_the_tests_loads_whole(tmp_path):
    for index, name in enumerate(CONFIGS):
        folder = tmp_path / str(index)
        write_model(folder, name)
        ours = full_weights(folder, model_spec(folder), 0)
        theirs = AutoModelForCausalLM.from_pretrained(folder).state_dict()
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
