"""From `spec.model` to the folder and the configuration of a model. Light: the driver imports it.

A model folder holds config.json and the tokenizer, and weights if there are any: what transformers and vLLM load.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api import ResolvedSpec
from rljob_api.resolve import ResolvedFromScratch, ResolvedModel
from rljob_trainer.errors import DataError, blamed, first_line
from rljob_trainer.paths import locate

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

WEIGHT_FILES = ("*.safetensors", "*.bin")
FIELD = "spec.model.path"
CRITIC_FIELD = "spec.critic.model"
TEACHER_FIELD = "spec.algorithm.teacher.path"

_HUB_NAME = re.compile(r"(\w[\w.-]*/)?\w[\w.-]*", re.ASCII)
"""A model of the hub: org/name, or of its oldest the name alone, such as gpt2."""

TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "*.tiktoken")

_OTHER_FORMATS = ("*.gguf", "*.onnx*", "*.pth", "*.h5", "*.msgpack", "original/*", "metal/*")
"""What hub folders hold besides the weights that transformers loads."""


def locate_model(model: ResolvedModel, base_dir: Path) -> Path:
    """The folder of `spec.model.path`: a local one, or a download from the hub.

    Raises DataError if there is neither.
    """
    assert model.path is not None
    return local_model(model, base_dir) or _checked(_download(model.path, FIELD, model.revision), model.path)


def critic_model(spec: ResolvedSpec) -> ResolvedModel | None:
    """The critic's own model; None if it has none."""
    critic = spec.critic
    if critic is None or critic.model is None:
        return None
    return _other_model(spec, critic.model, critic.revision)


def locate_critic(model: ResolvedModel, base_dir: Path) -> Path:
    """The folder of `spec.critic.model`: a local one, or a download from the hub. Raises DataError if neither is."""
    assert model.path is not None
    found = local_critic(model, base_dir)
    return found or _with_weights(_download(model.path, CRITIC_FIELD, model.revision), model.path, CRITIC_FIELD)


def local_critic(model: ResolvedModel, base_dir: Path) -> Path | None:
    """As local_model, for the critic, which needs no tokenizer."""
    assert model.path is not None
    folder = local_folder(model.path, base_dir, CRITIC_FIELD)
    return None if folder is None else _with_weights(folder, model.path, CRITIC_FIELD)


@dataclass(frozen=True, slots=True)
class ModelFolders:
    """Where the first weights of a job's models are. critic: of its own model. None: there is none."""

    policy: Path
    critic: Path | None = None
    teacher: Path | None = None


def teacher_model(spec: ResolvedSpec, folder: Path | None = None) -> ResolvedModel | None:
    """The teacher as a model of the ranks; None without one. folder: where it is, if that is known."""
    teacher = spec.algorithm.teacher
    if teacher is None or teacher.path is None:
        return None
    return _other_model(spec, str(folder) if folder is not None else teacher.path, teacher.revision)


def _other_model(spec: ResolvedSpec, path: str, revision: str | None) -> ResolvedModel:
    return spec.model.model_copy(update={"path": path, "revision": revision, "from_scratch": None, "lora": None})


def locate_teacher(model: ResolvedModel, base_dir: Path) -> Path:
    """As locate_model, for the teacher."""
    with blamed(TEACHER_FIELD):
        return locate_model(model, base_dir)


def local_teacher(model: ResolvedModel, base_dir: Path) -> Path | None:
    """As local_model, for the teacher."""
    with blamed(TEACHER_FIELD):
        return local_model(model, base_dir)


def local_model(model: ResolvedModel, base_dir: Path) -> Path | None:
    """The folder of `spec.model.path`, relative to the RLJob's file; None if it may be a name on the hub.

    Raises DataError for a folder that is missing or holds no model.
    """
    assert model.path is not None
    folder = local_folder(model.path, base_dir, FIELD)
    return None if folder is None else _checked(folder, model.path)


def local_folder(path: str, base_dir: Path, field: str) -> Path | None:
    """The folder that `path` names, relative to the RLJob's file; None if it may be a name on the hub.

    Raises DataError, which blames `field`, if it is neither.
    """
    local = locate(path, base_dir)
    if local.is_dir():
        return local
    if not _HUB_NAME.fullmatch(path):
        raise DataError(f"no folder {path}: correct the path", field=field)
    return None


def _download(path: str, field: str, revision: str | None = None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(snapshot_download(path, revision=revision, ignore_patterns=list(_OTHER_FORMATS)))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise DataError(
            f"{path} is neither a folder here nor a model the hub could give ({first_line(error)}): "
            "correct the path, or log in to the hub with HF_TOKEN",
            field=field,
        ) from error


def _with_weights(folder: Path, path: str, field: str) -> Path:
    if not (folder / "config.json").is_file():
        raise DataError(f"{path} has no config.json: give a folder that transformers can load", field=field)
    if not any(match for pattern in WEIGHT_FILES for match in folder.glob(pattern)):
        raise DataError(f"{path} has no weights (*.safetensors): give a whole model", field=field)
    return folder


def _checked(folder: Path, path: str) -> Path:
    _with_weights(folder, path, FIELD)
    if not any(match for pattern in TOKENIZER_FILES for match in folder.glob(pattern)):
        raise DataError(f"{path} has no tokenizer (tokenizer.json): save the model's own beside it", field=FIELD)
    return folder


def scratch_config(
    scratch: ResolvedFromScratch, vocab_size: int, max_positions: int, eos: int, pad: int
) -> "PreTrainedConfig":
    """The configuration of a model made from scratch."""
    from transformers import AutoConfig

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
