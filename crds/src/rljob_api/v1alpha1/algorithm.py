"""`spec.algorithm`: a preset, and fields that override parts of it.

A preset sets the fields without a default: `rljob_api.resolve` fills them from `v1alpha1.presets`. A rule rejects a
field that the resolved algorithm would not read, so that every accepted setting has an effect.
"""

from collections import defaultdict
from typing import Annotated

from pydantic import Field

from rljob_api.v1alpha1.base import ApiModel, Rule
from rljob_api.v1alpha1.presets import PRESETS
from rljob_api.v1alpha1.terms import Advantage, Aggregation, KlController, KlEstimator, KlPlacement, Loss, Preset

__all__ = [
    "Advantage",
    "Aggregation",
    "Algorithm",
    "DynamicSampling",
    "Kl",
    "KlEstimator",
    "Loss",
    "Preset",
    "governed",
]


def governed(field: str, column: str, owner: str = "self") -> str:
    """CEL for the value that `field` of `owner` ("loss", "kl.placement") has once its preset has filled it.

    column: the field of PresetRow that holds the preset's value.
    """
    presets: dict[str, list[str]] = defaultdict(list)
    for preset, row in PRESETS.items():
        presets[_literal(getattr(row, column))].append(preset)
    common = max(presets, key=lambda value: len(presets[value]))
    others = [f"{owner}.preset in {names} ? {value} : " for value, names in presets.items() if value != common]
    return f"(has({owner}.{field}) ? {owner}.{field} : {''.join(others)}{common})"


def _literal(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


_ADVANTAGE = governed("advantage", "advantage")
_LOSS = governed("loss", "loss")
_PLACEMENT = governed("kl.placement", "kl_placement")
_CONTROLLER = governed("kl.controller", "kl_controller")
_DYNAMIC = governed("dynamicSampling.enabled", "dynamic_sampling_enabled")

EFFECTIVE = {
    "clipRatio": (f"{_LOSS} != 'decoupled_clip'", "loss is clip or dual_clip"),
    "clipRatioLow": (f"{_LOSS} == 'decoupled_clip'", "loss is decoupled_clip"),
    "clipRatioHigh": (f"{_LOSS} == 'decoupled_clip'", "loss is decoupled_clip"),
    "clipRatioC": (f"{_LOSS} == 'dual_clip'", "loss is dual_clip"),
    "gamma": (f"{_ADVANTAGE} == 'reinforce_plus_plus'", "advantage is reinforce_plus_plus"),
    "kl.estimator": (f"{_PLACEMENT} != 'none'", "kl.placement is loss or reward"),
    "kl.coefficient": (f"{_PLACEMENT} != 'none'", "kl.placement is loss or reward"),
    "kl.controller": (f"{_PLACEMENT} != 'none'", "kl.placement is loss or reward"),
    "kl.target": (f"{_CONTROLLER} == 'adaptive'", "kl.controller is adaptive"),
    "kl.horizon": (f"{_CONTROLLER} == 'adaptive'", "kl.controller is adaptive"),
    "dynamicSampling.maxRounds": (_DYNAMIC, "dynamicSampling.enabled is true"),
}
"""When a field has an effect: as CEL over the algorithm, and as text."""

GOVERNED = (
    *("advantage", "loss", "aggregation", "entropyCoefficient", "kl.placement", "dynamicSampling.enabled"),
    *EFFECTIVE,
)
"""The fields that a preset governs."""

_ANY_OVERRIDE = " || ".join(f"has(self.{field})" for field in GOVERNED)


class Kl(ApiModel):
    """The penalty for leaving the reference model, which is the policy before its first RL step."""

    placement: KlPlacement | None = Field(
        None,
        description=("How the penalty applies: none, as a term of the loss, or subtracted from each token's reward."),
    )
    estimator: KlEstimator | None = Field(
        None, description="Estimator of the divergence by Schulman (http://joschu.net/blog/kl-approx.html)."
    )
    coefficient: Annotated[float, Field(ge=0, le=100)] | None = Field(
        None, description="Weight of the penalty at the start."
    )
    controller: KlController | None = Field(
        None,
        description=(
            "fixed keeps the coefficient; adaptive, for a penalty in the reward, steers it towards target"
            " (Ziegler et al. 2019, section 2.2)."
        ),
    )
    target: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        None, description="Divergence per response that the adaptive controller steers to, in nats."
    )
    horizon: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = Field(
        None, description="Samples over which the adaptive controller reacts."
    )


class DynamicSampling(ApiModel):
    """Replace groups whose rewards are all equal, because their advantages are 0 (DAPO)."""

    enabled: bool | None = Field(None, description="Replace groups whose rewards are all equal.")
    max_rounds: Annotated[int, Field(ge=1, le=100)] | None = Field(
        None, description="Largest number of sampling rounds of one step; then the step uses the groups that it has."
    )


class Algorithm(ApiModel):
    """How rewards become gradients."""

    preset: Preset = Field(
        "grpo",
        description=(
            "Named algorithm that sets every omitted field of spec.algorithm. sft is supervised fine-tuning and reads"
            " neither rollout nor rewards."
        ),
    )
    advantage: Advantage | None = Field(None, description="Advantage estimator.")
    loss: Loss | None = Field(None, description="Policy loss.")
    aggregation: Aggregation | None = Field(
        None,
        description=(
            "How token losses are averaged: token_mean over all tokens; sequence_mean over each response, then over"
            " the responses; dr_grpo divides the sum over tokens by responses x maxResponseTokens."
        ),
    )
    clip_ratio: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="Clip range of the probability ratio: 1 - clipRatio to 1 + clipRatio (losses clip and dual_clip).",
    )
    clip_ratio_low: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="Lower clip range of decoupled_clip."
    )
    clip_ratio_high: Annotated[float, Field(gt=0, le=10)] | None = Field(
        None, description="Upper clip range of decoupled_clip."
    )
    clip_ratio_c: Annotated[float, Field(gt=1, le=100)] | None = Field(
        None, description="Upper bound of the ratio for negative advantages in dual_clip."
    )
    gamma: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Discount of token rewards in reinforce_plus_plus."
    )
    kl: Kl = Field(default_factory=Kl, description="Penalty for leaving the reference model.")
    entropy_coefficient: Annotated[float, Field(ge=0, le=10)] | None = Field(
        None, description="Weight of the entropy bonus, which keeps the policy exploring."
    )
    dynamic_sampling: DynamicSampling = Field(
        default_factory=DynamicSampling, description="Replacement of groups whose rewards are all equal."
    )

    rules = (
        *(
            Rule(
                f"!has(self.{field}) || {condition}",
                f"algorithm.{field} has an effect only if {words}: remove it, or change that",
                field,
            )
            for field, (condition, words) in EFFECTIVE.items()
        ),
        Rule(
            f"{_CONTROLLER} != 'adaptive' || {_PLACEMENT} == 'reward'",
            "the adaptive controller needs a penalty in the reward:"
            " set algorithm.kl.placement to reward, or algorithm.kl.controller to fixed",
            "kl.controller",
        ),
        Rule(
            f"self.preset != 'sft' || !({_ANY_OVERRIDE})",
            "preset sft reads no other field of algorithm: remove the other fields, or choose an RL preset",
            "preset",
        ),
    )
