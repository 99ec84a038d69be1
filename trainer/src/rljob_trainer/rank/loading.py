"""From a model folder to a policy on every rank."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from rljob_api.resolve import ResolvedModel
from rljob_trainer.compute.attention_choice import built_with
from rljob_trainer.compute.linear import speed_up_linear_layers
from rljob_trainer.errors import DataError, first_line
from rljob_trainer.lora.files import FIELD as ADAPTER_FIELD
from rljob_trainer.lora.files import read_tensors
from rljob_trainer.lora.layers import initial_matrices
from rljob_trainer.rank.attention import PACKED_ATTENTION
from rljob_trainer.rank.model_source import FIELD


def empty_model(folder: Path, model: ResolvedModel) -> PreTrainedModel:
    """The model's modules in float32, their weights not yet written: memory is only taken where weights are loaded.

    Raises DataError for what transformers cannot load.
    """
    attention = PACKED_ATTENTION if model.attention == "auto" else model.attention

    def build(attention: str | None) -> PreTrainedModel:
        return bare_model(config, attn_implementation=attention, trust_remote_code=model.trust_remote_code)

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=model.trust_remote_code)
        _drop_dropout(config)
        made = built_with(attention, build) if attention == PACKED_ATTENTION else build(attention)
    except (ValueError, OSError, KeyError, ImportError) as error:
        about_attention = attention != PACKED_ATTENTION and "ttention" in str(error)
        raise DataError(
            f"transformers cannot load it: {first_line(error)}",
            field="spec.model.attention" if about_attention else FIELD,
        ) from error
    speed_up_linear_layers(made)
    return made


def bare_model(config: PreTrainedConfig, **options: Any) -> PreTrainedModel:
    """The configuration's modules in float32, weights not yet written. options: of AutoModelForCausalLM.from_config."""
    with no_init_weights():
        made: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **options)
    made.tie_weights()  # transformers counts it as initialization
    return made


def _drop_dropout(config: PreTrainedConfig) -> None:
    """The ratio of a token's probabilities before and after an update must be that of weights, not of random masks."""
    for name, value in vars(config).items():
        if ("dropout" in name or "pdrop" in name) and isinstance(value, float):
            setattr(config, name, 0.0)


def full_weights(folder: Path, model: ResolvedModel, seed: int) -> dict[str, torch.Tensor]:
    """All weights in float32 on the host: from the folder, or drawn by `seed` for a model from scratch.

    Raises DataError if the folder's weights are damaged, incomplete, not finite, or do not match the configuration.
    """
    if model.from_scratch is not None:
        config = AutoConfig.from_pretrained(folder)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return dict(AutoModelForCausalLM.from_config(config, dtype=torch.float32).state_dict())
    try:
        loaded, report = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, trust_remote_code=model.trust_remote_code, output_loading_info=True,
            ignore_mismatched_sizes=True,
        )  # fmt: skip
    except (ValueError, OSError, RuntimeError, SafetensorError) as error:
        raise DataError(
            f"its weights cannot be loaded: {first_line(error)}; use a complete model", field=FIELD
        ) from error
    # transformers would draw these at random
    if wrong := sorted(report["mismatched_keys"]):
        name, found, meant = wrong[0]
        raise DataError(
            f"its {name} has shape {list(found)}, but config.json says {list(meant)}; use a model whose weights "
            "match its config.json",
            field=FIELD,
        )
    if missing := sorted(report["missing_keys"]):
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise DataError(f"its weights lack {missing[0]}{more}; use a complete model", field=FIELD)
    weights = dict(loaded.state_dict())
    if broken := [name for name, each in weights.items() if each.is_floating_point() and not each.isfinite().all()]:
        raise DataError(f"its {broken[0]} has values that are NaN or infinite; use an intact model", field=FIELD)
    return weights


def adapter_weights(network: nn.Module, model: ResolvedModel, seed: int) -> dict[str, torch.Tensor]:
    """The weights of the model's adapter in float32 on the host: fresh, drawn by `seed`, or those in lora.path.

    Empty without an adapter. Raises DataError if the files do not fit the model.
    """
    fresh = initial_matrices(network, seed)
    if model.lora is None or model.lora.path is None:
        return fresh
    read = read_tensors(Path(model.lora.path))
    for name, tensor in fresh.items():
        if name not in read or read[name].shape != tensor.shape or not read[name].isfinite().all():
            found = list(read[name].shape) if name in read else "nothing"
            raise DataError(
                f"its {name} should be finite numbers [{', '.join(map(str, tensor.shape))}], and is {found}: give an"
                " adapter of this model",
                field=ADAPTER_FIELD,
            )
    return {name: read[name].float() for name in fresh}
