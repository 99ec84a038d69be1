"""What an architecture does with the products of its output head before they are logits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_FACTORS: Mapping[str, int] = {"logit_scale": 1, "lm_head_multiplier": 1, "logits_scaling": -1}
"""Fields of configurations, and the exponent with which each scales: Cohere and FalconH1 multiply, Granite divides."""

_CAP = "final_logit_softcapping"
"""Gemma 2: https://arxiv.org/abs/2408.00118, section 2."""


@dataclass(frozen=True, slots=True)
class LogitTransform:
    """logit = cap tanh(scale z / cap) of a product z of the output head; scale z without a cap."""

    scale: float = 1.0
    cap: float | None = None

    @classmethod
    def of(cls, config: "PreTrainedConfig") -> "LogitTransform":
        """What the configuration says. packable.py compares the result with the model's own logits."""
        scale = 1.0
        for name, exponent in _FACTORS.items():
            scale *= (getattr(config, name, None) or 1.0) ** exponent
        return cls(scale, getattr(config, _CAP, None))
