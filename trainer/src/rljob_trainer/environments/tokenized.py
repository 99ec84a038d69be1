"""Loads the chat template and the tokenizer of a model's folder, without torch."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_trainer.data.chat import ChatFormat
from rljob_trainer.data.torchless import import_transformers
from rljob_trainer.engines.ends import as_ids, end_ids
from rljob_trainer.environments.conversation import Tokenized
from rljob_trainer.environments.tool_calls import ParseCalls, parse_tool_calls

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenized(
    folder: Path, arguments: Mapping[str, Any], now: datetime, trust_remote_code: bool, tool_parser: str | None
) -> Tokenized:
    """arguments: of the template. now: the time that it sees. tool_parser: environment.toolParser.

    Raises DataError as ChatFormat, and EnvironmentFailed for a parser that cannot be used.
    """
    import_transformers()
    from transformers import AutoConfig, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    ends = end_ids(folder) | set(as_ids(tokenizer.eos_token_id))
    rows = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code).get_text_config().vocab_size
    return Tokenized(ChatFormat(tokenizer, arguments, now=now), ends, parser(tool_parser, tokenizer), rows)


def parser(name: str | None, tokenizer: "PreTrainedTokenizerBase") -> ParseCalls:
    """What finds calls of tools in an answer. name: environment.toolParser. Raises EnvironmentFailed."""
    if name is None:
        return parse_tool_calls
    from rljob_trainer.environments.vllm_parsers import vllm_parser  # loads torch

    return vllm_parser(name, tokenizer)
