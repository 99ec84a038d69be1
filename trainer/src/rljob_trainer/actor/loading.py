"""From `spec.model` to a model folder, and from a model folder to a policy on every rank.

A model folder holds config.json and the tokenizer, and weights where there are any: what transformers and vLLM load.
"""

from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from rljob_api.resolve import ResolvedFromScratch, ResolvedModel
from rljob_trainer.actor.attention import PACKED_ATTENTION
from rljob_trainer.errors import DataError, JobError

WEIGHT_FILES = ("*.safetensors", "*.bin")
_SCALED_LOGITS = ("final_logit_softcapping", "logits_scaling", "logit_scale")


def locate_model(model: ResolvedModel, base_dir: Path) -> Path:
    """The folder of `spec.model.path`: a local one, relative to the RLJob's file, or a download from the hub.

    Raises DataError where there is neither.
    """
    assert model.path is not None
    local = base_dir / Path(model.path).expanduser()
    if local.is_dir():
        return _checked(local, model.path)
    if model.path.startswith(("/", ".", "~")) or model.path.count("/") != 1:
        raise DataError(f"no folder {model.path}: correct the path", field="spec.model.path")
    try:
        return Path(snapshot_download(model.path, revision=model.revision))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        summary = str(error).strip().splitlines()[0]
        raise DataError(
            f"{model.path} is neither a folder here nor a model the hub could give ({summary}): "
            "correct the path, or log in to the hub with HF_TOKEN",
            field="spec.model.path",
        ) from error


def _checked(folder: Path, path: str) -> Path:
    if not (folder / "config.json").is_file():
        raise DataError(f"{path} has no config.json: give a folder that transformers can load", field="spec.model.path")
    if not any(match for pattern in WEIGHT_FILES for match in folder.glob(pattern)):
        raise DataError(f"{path} has no weights (*.safetensors): give a whole model", field="spec.model.path")
    return folder


def scratch_config(
    scratch: ResolvedFromScratch, vocab_size: int, max_positions: int, eos: int, pad: int
) -> PreTrainedConfig:
    """The configuration of a model made from scratch."""
    return AutoConfig.for_model(
        scratch.architecture,
        vocab_size=vocab_size,
        num_hidden_layers=scratch.layers,
        hidden_size=scratch.hidden_size,
        num_attention_heads=scratch.heads,
        num_key_value_heads=scratch.kv_heads,
        intermediate_size=scratch.intermediate_size,
        max_position_embeddings=max_positions,
        tie_word_embeddings=scratch.tie_embeddings,
        eos_token_id=eos,
        pad_token_id=pad,
        bos_token_id=None,
        architectures=[f"{scratch.architecture.capitalize()}ForCausalLM"],
    )


def empty_model(folder: Path, model: ResolvedModel) -> PreTrainedModel:
    """The model's modules in float32, their weights not yet written: memory is only taken where weights are loaded."""
    attention = PACKED_ATTENTION if model.attention == "auto" else model.attention
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=model.trust_remote_code)
        with no_init_weights():
            made: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, attn_implementation=attention, trust_remote_code=model.trust_remote_code
            )
    except (ValueError, OSError, KeyError, ImportError) as error:
        raise DataError(f"transformers cannot load it: {_first_line(error)}", field="spec.model.path") from error
    scaled = [name for name in _SCALED_LOGITS if getattr(config, name, None) not in (None, 1, 1.0)]
    if scaled:
        raise JobError(f"models with {scaled[0]} are not supported yet: choose another model", field="spec.model.path")
    return made


def full_weights(folder: Path, model: ResolvedModel, seed: int) -> dict[str, torch.Tensor]:
    """Every weight, whole, in float32 on the host: of the folder, or drawn by `seed` for a model from scratch."""
    if model.from_scratch is not None:
        config = AutoConfig.from_pretrained(folder)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return dict(AutoModelForCausalLM.from_config(config, dtype=torch.float32).state_dict())
    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, trust_remote_code=model.trust_remote_code
        )
    except (ValueError, OSError, RuntimeError) as error:
        raise DataError(f"its weights cannot be loaded: {_first_line(error)}", field="spec.model.path") from error
    return dict(loaded.state_dict())


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
