"""`spec.algorithm`: a preset, and each of its parts to override.

The fields without a default are those a preset governs: `rljob_api.resolve` fills them from `rljob_api.presets`.
"""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.v1alpha1.base import ApiModel, Rule

Preset = Literal[
    "grpo", "dapo", "dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "sft"
]
Advantage = Literal["grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"]
Loss = Literal["clip", "dual_clip", "decoupled_clip"]
Aggregation = Literal["token_mean", "sequence_mean", "dr_grpo"]
KlEstimator = Literal["k1", "k2", "k3"]


class Kl(ApiModel):
    """The penalty for leaving the reference model, which is the policy before its first RL step."""

    placement: Literal["none", "loss", "reward"] | None = Field(
        None, description="Where the penalty acts: not at all, as a term of the loss, or subtracted from each token's reward."
    )
    estimator: KlEstimator | None = Field(
        None, description="Estimator of the divergence by Schulman (http://joschu.net/blog/kl-approx.html)."
    )
    coefficient: Annotated[float, Field(ge=0, le=100)] | None = Field(None, description="Weight of the penalty at the start.")
    controller: Literal["fixed", "adaptive"] | None = Field(
        None, description="fixed keeps the coefficient; adaptive steers it towards target (Ziegler et al. 2019, section 2.2)."
    )
    target: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        None, description="Divergence per response that the adaptive controller steers to, in nats."
    )
    horizon: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = Field(
        None, description="Samples over which the adaptive controller reacts."
    )

    rules = (
        Rule(
            "!has(self.target) || (has(self.controller) && self.controller == 'adaptive')",
            "kl.target belongs to the adaptive controller: set kl.controller: adaptive, or remove kl.target",
            "target",
        ),
        Rule(
            "!has(self.horizon) || (has(self.controller) && self.controller == 'adaptive')",
            "kl.horizon belongs to the adaptive controller: set kl.controller: adaptive, or remove kl.horizon",
            "horizon",
        ),
        Rule(
            "!has(self.controller) || self.controller != 'adaptive' || (has(self.placement) && self.placement == 'reward')",
            "the adaptive controller steers a penalty in the reward: set kl.placement: reward, or kl.controller: fixed",
            "controller",
        ),
    )


class DynamicSampling(ApiModel):
    """Leave out groups whose rewards are all equal, which teach nothing, and sample others for them (DAPO)."""

    enabled: bool | None = Field(None, description="Whether such groups are replaced.")
    max_rounds: Annotated[int, Field(ge=1, le=100)] | None = Field(
        None, description="Rounds of sampling a step may take; then it trains on the groups it has."
    )


class Algorithm(ApiModel):
    """How rewards become gradients."""

    preset: Preset = Field(
        "grpo", description="The named algorithm that fills every field left out here; sft is supervised fine-tuning."
    )
    advantage: Advantage | None = Field(None, description="Advantage estimator.")
    loss: Loss | None = Field(None, description="Policy loss.")
    aggregation: Aggregation | None = Field(
        None,
        description="How token losses become one number: the mean over all tokens, the mean over responses of each one's mean, "
        "or Dr.GRPO's sum over tokens divided by responses x maxResponseTokens.",
    )
    clip_ratio: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="Clip range of the probability ratio: 1 - clipRatio to 1 + clipRatio (losses clip and dual_clip)."
    )
    clip_ratio_low: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="Lower clip range of decoupled_clip."
    )
    clip_ratio_high: Annotated[float, Field(gt=0, le=10)] | None = Field(
        None, description="Upper clip range of decoupled_clip."
    )
    clip_ratio_c: Annotated[float, Field(gt=1, le=100)] | None = Field(
        None, description="Bound of the ratio for negative advantages in dual_clip."
    )
    gamma: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Discount of token rewards; reinforce_plus_plus uses it."
    )
    kl: Kl = Field(default_factory=Kl, description="Penalty for leaving the reference model.")
    entropy_coefficient: Annotated[float, Field(ge=0, le=10)] | None = Field(
        None, description="Weight of the entropy bonus, which keeps the policy exploring."
    )
    dynamic_sampling: DynamicSampling = Field(
        default_factory=DynamicSampling, description="Replacement of groups whose rewards are all equal."
    )
