"""The run's model folder: configuration and tokenizer for engines, rewards and export, without weights."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api import ResolvedSpec
from rljob_trainer.engines.registry import ENGINES
from rljob_trainer.errors import DataError, first_line
from rljob_trainer.rank.model_source import FIELD, scratch_config

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def max_model_len(spec: ResolvedSpec) -> int:
    """Length in tokens of the longest sequence in an engine: a sample or a probe."""
    probe = ENGINES[spec.rollout.engine].probe
    return max(spec.data.max_prompt_tokens + spec.data.max_response_tokens, probe.length + probe.tokens)


def prepare_model_folder(spec: ResolvedSpec, source: Path, folder: Path, tokenizer: "PreTrainedTokenizerBase") -> int:
    """Fill `folder` from `source`, or from scratch. Returns the size of the vocabulary to sample from.

    Raises DataError if transformers cannot load the model, or if its context is too short for the job.
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
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=spec.model.trust_remote_code)
    except (ValueError, OSError, KeyError, ImportError) as error:
        raise DataError(f"transformers cannot load the model: {first_line(error)}", field=FIELD) from error
    config.save_pretrained(folder)
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and longest < spec.data.max_prompt_tokens + spec.data.max_response_tokens:
        raise DataError(
            f"the model's context has {longest} tokens; lower data.maxPromptTokens or data.maxResponseTokens",
            field="spec.data.maxResponseTokens",
        )
    return min(len(tokenizer), config.vocab_size)
