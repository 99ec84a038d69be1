"""Where a sample ends: end-of-text tokens, which all engines read alike, and stop strings, for engine hf."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from rljob_trainer.engines.ends import as_ids, end_ids


@lru_cache(maxsize=1)
def load_tokenizer(model_dir: str, trust_remote_code: bool) -> Any:
    return AutoTokenizer.from_pretrained(model_dir, trust_remote_code=trust_remote_code)


def end_token_ids(model_dir: str, trust_remote_code: bool) -> list[int]:
    """Tokens that end a sample: those of generation_config.json and config.json and the tokenizer's own."""
    own = load_tokenizer(model_dir, trust_remote_code).eos_token_id
    return sorted({*end_ids(Path(model_dir)), *as_ids(own)})


class StopStrings:
    """Finds stop strings in the newest tokens of samples."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def window(self, stop: Sequence[str]) -> int:
        """Tokens that can hold the longest of these strings, at one byte a token or more."""
        return max(len(text.encode()) for text in stop)

    def found(self, newest: list[list[int]], stop: Sequence[str]) -> list[bool]:
        """Whether one of these strings is in each sample's `newest` tokens, at most `window` of them."""
        texts = self._tokenizer.batch_decode(newest, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return [any(each in text for each in stop) for text in texts]
