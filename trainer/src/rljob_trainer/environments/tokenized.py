"""Loads the chat template and the tokenizer of a model's folder, without torch."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from rljob_trainer.data.chat import ChatFormat
from rljob_trainer.data.torchless import import_transformers
from rljob_trainer.engines.ends import as_ids, end_ids
from rljob_trainer.environments.conversation import Tokenized


def load_tokenized(folder: Path, arguments: Mapping[str, Any], now: datetime, trust_remote_code: bool) -> Tokenized:
    """arguments: of the template. now: the time that it sees. Raises DataError as ChatFormat."""
    import_transformers()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    return Tokenized(ChatFormat(tokenizer, arguments, now=now), end_ids(folder) | set(as_ids(tokenizer.eos_token_id)))
