"""The configuration of `spec.model` for a plan, without weights and tokenizer. Light."""

from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.resolve import ResolvedModel
from rljob_trainer.errors import DataError, first_line
from rljob_trainer.rank.model_source import FIELD, local_folder, scratch_config
from rljob_trainer.rank.supported import load_config

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_SMALL_VOCABULARY = 512
"""Tokens of a tokenizer that is built from the data, which a plan does not read: byte or character."""


def config_folder(model: ResolvedModel, base_dir: Path) -> Path | None:
    """The local folder with the model's config.json; None for a model from scratch or on the hub."""
    folder = local_folder(model.path, base_dir, FIELD) if model.path is not None else None
    return folder if folder is not None and (folder / "config.json").is_file() else None


def planned_config(model: ResolvedModel, base_dir: Path) -> "PreTrainedConfig":
    """The configuration in the model's folder, on the hub, or of the model from scratch. Raises DataError."""
    if model.from_scratch is not None:
        rows = model.from_scratch.tokenizer.vocab_size or _SMALL_VOCABULARY
        return scratch_config(model.from_scratch, rows, max_positions=1 << 20, eos=0, pad=0)
    assert model.path is not None
    if (folder := local_folder(model.path, base_dir, FIELD)) is not None:
        return load_config(folder, trust_remote_code=model.trust_remote_code)
    from transformers import AutoConfig

    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            model.path, revision=model.revision or "main", trust_remote_code=model.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise DataError(
            f"{model.path} is neither a folder here nor a model the hub could give ({first_line(error)}): correct the"
            " path, or log in to the hub with HF_TOKEN",
            field=FIELD,
        ) from error
    return config
