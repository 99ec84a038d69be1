"""The run's model folder: configuration and tokenizer for engines, rewards and export, without weights."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api import ResolvedSpec
from rljob_trainer.rank.model_source import scratch_config
from rljob_trainer.rank.supported import check_supported, check_token_ids, load_config, max_model_len

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def prepare_model_folder(spec: ResolvedSpec, source: Path, folder: Path, tokenizer: "PreTrainedTokenizerBase") -> int:
    """Fill `folder` from `source`, or from scratch. Returns the size of the vocabulary to sample from.

    Raises DataError or JobError if transformers, this trainer or the engine cannot compute the model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    if spec.model.from_scratch is not None:
        config = scratch_config(
            spec.model.from_scratch, len(tokenizer), max_model_len(spec), tokenizer.eos_token_id, tokenizer.pad_token_id
        )
        config.save_pretrained(folder)
        return len(tokenizer)
    for path in [*source.glob("*.py"), *source.glob("generation_config.json")]:
        shutil.copy2(path, folder)
    config = load_config(source, trust_remote_code=spec.model.trust_remote_code)
    config.save_pretrained(folder)
    check_supported(config, spec)
    check_token_ids(config, len(tokenizer) - 1)
    return min(len(tokenizer), config.vocab_size)
