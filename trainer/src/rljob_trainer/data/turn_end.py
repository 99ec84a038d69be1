"""The token with which a chat template ends the assistant's turn: SFT trains it, and generation stops at it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jinja2

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError)
"""What a template raises for a conversation that it does not take."""

_ANSWER = "73191"
"""An answer of digits alone: a template that changes the case of letters leaves it as it is."""


def turn_end(tokenizer: "PreTrainedTokenizerBase") -> int:
    """The first token of its own (such as <|im_end|>) that the template writes after an answer.

    The end-of-text token if the template writes none, as one that ends turns with a new line.
    """
    own = tokenizer.added_tokens_decoder
    for tail in _tails(tokenizer):
        for token in tokenizer(tail, add_special_tokens=False)["input_ids"]:
            if token in own:
                return int(token)
    return int(tokenizer.eos_token_id)


def _tails(tokenizer: "PreTrainedTokenizerBase") -> Iterator[str]:
    """What follows the answer in conversations that templates take: some want a system message, or lists of parts."""
    for roles in (("user", "assistant"), ("system", "user", "assistant")):
        for parts in (False, True):
            try:
                text = str(tokenizer.apply_chat_template(_conversation(roles, parts=parts), tokenize=False))
            except TEMPLATE_ERRORS:
                continue
            _, found, tail = text.rpartition(_ANSWER)
            if found and not tail.startswith("'"):  # a list of parts as Python prints it
                yield tail


def _conversation(roles: tuple[str, ...], *, parts: bool) -> list[dict[str, Any]]:
    texts = [_ANSWER if role == "assistant" else "42" for role in roles]
    return [
        {"role": role, "content": [{"type": "text", "text": text}] if parts else text}
        for role, text in zip(roles, texts, strict=True)
    ]
