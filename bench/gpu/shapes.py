"""The sizes of what both trainers are given."""

from dataclasses import dataclass

PROMPTS, SAMPLES = 64, 8
"""Of a step: 512 responses."""

LONG, PROMPTS_OF_LONG = 2048, 32
"""Responses of so many tokens are half as many, so that a step ends within a minute."""

SHORTEST, LONGEST = 64, 128
"""Tokens of a prompt."""

RATE = 1e-6


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Qwen2.5 model."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int = 151_936
    tied: bool = True


SHAPES = {
    "tiny": Shape(64, 2, 2, 1, 128, 2048),
    "0.5B": Shape(896, 24, 14, 2, 4864),
    "1.5B": Shape(1536, 28, 12, 2, 8960),
    "7B": Shape(3584, 28, 28, 4, 18_944, 152_064, tied=False),
}


@dataclass(frozen=True, slots=True)
class Work:
    """tokens: of each response. steps: of a run."""

    shape: str
    tokens: int
    steps: int

    @property
    def prompts(self) -> int:
        """Of a step."""
        return PROMPTS if self.tokens < LONG else PROMPTS_OF_LONG
