"""The run's model folder: configuration and tokenizer for engines, rewards and export, without weights."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api import ResolvedSpec
from rljob_trainer.data.turn_end import turn_end
from rljob_trainer.engines.ends import as_ids, write_end_ids
from rljob_trainer.lora.base import write_base
from rljob_trainer.lora.files import ADAPTER, write_config
from rljob_trainer.rank.model_source import TOKENIZER_FILES, scratch_config
from rljob_trainer.rank.supported import check_supported, check_token_ids, load_config, max_model_len

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

_MORE_FILES = ("added_tokens.json", "merges.txt", "special_tokens_map.json")
"""Files of a Python tokenizer besides TOKENIZER_FILES."""


def prepare_model_folder(spec: ResolvedSpec, source: Path, folder: Path, tokenizer: "PreTrainedTokenizerBase") -> int:
    """Fill `folder` from `source`, or from scratch. Returns the size of the vocabulary to sample from.

    Raises DataError or JobError if transformers, this trainer or the engine cannot compute the model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _save_tokenizer(tokenizer, source, folder)
    if spec.model.from_scratch is not None:
        config = scratch_config(
            spec.model.from_scratch, len(tokenizer), max_model_len(spec), tokenizer.eos_token_id, tokenizer.pad_token_id
        )
        config.save_pretrained(folder)
        _name_ends(folder, config, tokenizer)
        return len(tokenizer)
    for path in [*source.glob("*.py"), *source.glob("generation_config.json")]:
        shutil.copy2(path, folder)
    config = load_config(source, trust_remote_code=spec.model.trust_remote_code)
    config.save_pretrained(folder)
    _name_ends(folder, config, tokenizer)
    if spec.model.lora is not None:
        write_config(folder / ADAPTER, spec.model.lora, base=str(source.resolve()))
        write_base(folder / ADAPTER, source)
    check_supported(config, spec)
    check_token_ids(config, len(tokenizer) - 1)
    return min(len(tokenizer), config.vocab_size)


def _save_tokenizer(tokenizer: "PreTrainedTokenizerBase", source: Path, folder: Path) -> None:
    """Python code of a model's own often cannot save itself; its files are copied."""
    if tokenizer.is_fast:
        tokenizer.save_pretrained(folder)
        return
    for path in [match for pattern in (*TOKENIZER_FILES, *_MORE_FILES) for match in source.glob(pattern)]:
        shutil.copy2(path, folder)
    if isinstance(tokenizer.chat_template, str):  # it may be the job's; several by name stay in the copied files
        (folder / "chat_template.jinja").write_text(tokenizer.chat_template)


def _name_ends(folder: Path, config: "PreTrainedConfig", tokenizer: "PreTrainedTokenizerBase") -> None:
    """Let engines stop, and rewards cut a response, at the token with which the chat template ends a turn too."""
    ends = {*as_ids(config.eos_token_id), *as_ids(tokenizer.eos_token_id), turn_end(tokenizer)}
    write_end_ids(folder, ends, pad_token_id=tokenizer.pad_token_id)
