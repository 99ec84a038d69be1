"""From a model folder to the weights of a critic."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from rljob_api.resolve import ResolvedModel
from rljob_trainer.errors import DataError, first_line
from rljob_trainer.lora.files import is_adapter
from rljob_trainer.rank.model_source import CRITIC_FIELD

_CLASSIFIERS = {
    "ForTokenClassification": AutoModelForTokenClassification,
    "ForSequenceClassification": AutoModelForSequenceClassification,
}


def critic_weights(critic: nn.Module, folder: Path, model: ResolvedModel) -> dict[str, Tensor]:
    """All weights but an adapter's, float32, on the host, by the critic's names; of a language model values begin as 0.

    Raises DataError if they are damaged, incomplete, not finite, or do not match the configuration.
    """
    config = AutoConfig.from_pretrained(folder, trust_remote_code=model.trust_remote_code)
    architecture = (config.architectures or [""])[0]
    kind = next((kind for suffix, kind in _CLASSIFIERS.items() if architecture.endswith(suffix)), None)
    loaded = _load(kind or AutoModelForCausalLM, folder, model)
    weights = {f"model.{name}": each for name, each in loaded.state_dict().items()}
    found = _head(loaded) if kind else {}
    known = {name: each for name, each in critic.state_dict().items() if not is_adapter(name)}
    weights |= {
        f"head.{name}": found.get(name, torch.zeros(known[f"head.{name}"].shape)) for name in ("weight", "bias")
    }
    for name, each in known.items():
        if name not in weights or weights[name].shape != each.shape:
            raise DataError(f"its {name} is missing or has another shape: use a complete model", field=CRITIC_FIELD)
        if each.is_floating_point() and not weights[name].isfinite().all():
            raise DataError(f"its {name} has values that are NaN or infinite; use an intact model", field=CRITIC_FIELD)
    return {name: weights[name] for name in known}


def _load(kind: type, folder: Path, model: ResolvedModel) -> PreTrainedModel:
    try:
        loaded, report = kind.from_pretrained(  # type: ignore[attr-defined]  # a class of AutoModels
            folder, dtype=torch.float32, trust_remote_code=model.trust_remote_code, output_loading_info=True
        )
    except (ValueError, OSError, RuntimeError, SafetensorError) as error:
        raise DataError(
            f"its weights cannot be loaded: {first_line(error)}; use a complete model", field=CRITIC_FIELD
        ) from error
    ours = loaded.base_model_prefix + "."
    if missing := sorted(name for name in report["missing_keys"] if name.startswith(ours)):
        raise DataError(f"its weights lack {missing[0]}; use a complete model", field=CRITIC_FIELD)
    made: PreTrainedModel = loaded
    return made


def _head(classifier: PreTrainedModel) -> dict[str, Tensor]:
    """Weight and perhaps bias of its last layer. Raises DataError unless that gives one number."""
    head = getattr(classifier, "score", None) or getattr(classifier, "classifier", None)
    if not isinstance(head, nn.Linear) or head.out_features != 1:
        raise DataError(
            f"{type(classifier).__name__} has no linear head with one value: use a classifier with one label, or a"
            " language model",
            field=CRITIC_FIELD,
        )
    return dict(head.state_dict())
