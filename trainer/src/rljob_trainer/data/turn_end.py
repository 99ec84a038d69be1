"""The token with which a chat template ends the assistant's turn: SFT trains it, and generation stops at it."""

from typing import TYPE_CHECKING

import jinja2

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError)
"""What a template raises for a conversation that it does not take."""

_ANSWER = "Zq7"
_CHAT = [{"role": "user", "content": "Vx3"}, {"role": "assistant", "content": _ANSWER}]


def turn_end(tokenizer: "PreTrainedTokenizerBase") -> int:
    """The first token of its own (such as <|im_end|>) that the template writes after an answer.

    The end-of-text token if the template writes none, as one that ends turns with a new line.
    """
    eos = int(tokenizer.eos_token_id)
    try:
        text = str(tokenizer.apply_chat_template(_CHAT, tokenize=False))
    except TEMPLATE_ERRORS:
        return eos
    _, found, tail = text.rpartition(_ANSWER)
    ids = tokenizer(tail, add_special_tokens=False)["input_ids"] if found else []
    own = tokenizer.added_tokens_decoder
    return next((int(token) for token in ids if token in own), eos)
