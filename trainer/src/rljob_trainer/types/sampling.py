"""How tokens are sampled, and why a turn ended."""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]
"""stop: an end-of-text token, a stop string, or as few tokens as an agent asked for. length: the limit of tokens."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling of one request.

    max_tokens: most tokens of the answer.
    temperature: 0 is greedy.
    top_p, top_k: the usual truncations; top_k -1 keeps all tokens.
    stop: strings that end an answer; they stay in it.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop: tuple[str, ...] = ()
