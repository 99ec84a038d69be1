"""An adapter's two files, as peft writes and reads them. Light.

https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_api.resolve import ResolvedLora
from rljob_trainer.errors import DataError, first_line

if TYPE_CHECKING:
    from torch import Tensor

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
FIELD = "spec.model.lora.path"

ADAPTER = "adapter"
"""The folder in a run's model folder, if an adapter trains, with the configuration: it names the adapted model."""

PREFIX = "base_model.model."
"""What peft's files put in front of the name that a parameter has in the model."""

MATRICES = (".lora_A.weight", ".lora_B.weight")

_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    **dict.fromkeys(
        (
            "use_rslora", "use_dora", "lora_bias", "fan_in_fan_out", "modules_to_save", "rank_pattern",
            "alpha_pattern", "layer_replication", "target_parameters", "trainable_token_indices", "use_qalora",
            "use_bdlora", "alora_invocation_tokens",
        ),
        (None, False, {}, []),
    ),
}  # fmt: skip
"""Fields of adapter_config.json, and the values of a plain adapter. Others change what it computes."""

_CHANGES_MODEL = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""How values of init_lora_weights begin with which peft changes the model's own weights before it trains the adapter.
https://huggingface.co/docs/peft/developer_guides/lora
"""


def is_adapter(name: str) -> bool:
    """Whether a parameter of a model, or a tensor of peft's files, is a matrix of an adapter."""
    return name.endswith(MATRICES)


def layer_of(name: str) -> str:
    """The layer of a matrix, by its name in the model. name: in the model or in peft's files."""
    return name.removeprefix(PREFIX).rpartition(".lora_")[0]


def read_config(folder: Path) -> dict[str, Any]:
    """Raises DataError if there is none, and for an adapter that computes more than two matrices of one rank."""
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_text())
        rank, alpha = config["r"], config["lora_alpha"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder / CONFIG} cannot be read ({first_line(error)}): give a folder that peft wrote", field=FIELD
        ) from error
    if not isinstance(rank, int) or not isinstance(alpha, int | float) or not 1 <= rank <= 512 or alpha <= 0:
        raise DataError(f"{folder / CONFIG} has rank {rank} and alpha {alpha}: ranks are 1 to 512", field=FIELD)
    for name, plain in _PLAIN.items():
        if name in config and config[name] not in plain:
            raise DataError(
                f"{folder / CONFIG} has {name} {json.dumps(config[name])}, which is not supported: train the adapter"
                " without it, or merge it into the model with peft and give that model",
                field=FIELD,
            )
    _check_start(folder, config.get("init_lora_weights"))
    return config


def _check_start(folder: Path, start: object) -> None:
    if isinstance(start, str) and start.lower().startswith(_CHANGES_MODEL):
        raise DataError(
            f"{folder / CONFIG} has init_lora_weights {json.dumps(start)}, which is not supported: its matrices belong"
            " to a model that peft changed. Save it with peft's path_initial_model_for_weight_conversion, or merge it"
            " into the model with peft and give that model",
            field=FIELD,
        )


def read_layers(folder: Path) -> list[str]:
    """The layers that the adapter in `folder` has matrices for, by their names in the model. Raises DataError."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / TENSORS, framework="np") as file:
            names = list(file.keys())
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"{folder / TENSORS} cannot be read ({first_line(error)}): give a folder that peft wrote", field=FIELD
        ) from error
    if others := [name for name in names if not is_adapter(name)]:
        raise DataError(
            f"{folder / TENSORS} has {others[0]}, which is no matrix of a linear layer: train the adapter without it",
            field=FIELD,
        )
    return sorted({layer_of(name) for name in names})


def read_tensors(folder: Path) -> "dict[str, Tensor]":
    """The matrices by their names in the model. Raises DataError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found = load_file(folder / TENSORS)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{folder / TENSORS} cannot be read: {first_line(error)}", field=FIELD) from error
    return {name.removeprefix(PREFIX): tensor for name, tensor in found.items()}


def peft_config(lora: ResolvedLora, base: str) -> dict[str, Any]:
    """adapter_config.json of an adapter whose rank, alpha and target_modules are known.

    base: the model that it adapts, a folder or a name.
    """
    assert lora.target_modules is not None
    alone = lora.target_modules == ["all-linear"]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": "all-linear" if alone else sorted(lora.target_modules),
        "bias": "none",
        "inference_mode": True,
    }


def write_config(folder: Path, lora: ResolvedLora, base: str) -> None:
    """Write `peft_config` into the folder."""
    config = peft_config(lora, base)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def write_tensors(folder: Path, tensors: "Iterable[tuple[str, Tensor]]") -> int:
    """tensors: by their names in the model. Returns their bytes. Raises OSError."""
    from safetensors.torch import save_file

    named = {f"{PREFIX}{name}": tensor.contiguous() for name, tensor in tensors}
    save_file(named, folder / TENSORS, metadata={"format": "pt"})
    return sum(each.nbytes for each in named.values())
