"""`spec.algorithm`: a preset, and fields that override parts of it.

A preset sets the fields without a default: `rljob_api.resolve` fills them from `v1alpha1.presets`. A rule rejects a
field that the resolved algorithm would not read, so that every accepted setting has an effect.
"""

from typing import Annotated, get_args

from pydantic import Field

from rljob_api.v1alpha1.base import ApiModel, Count, Rule
from rljob_api.v1alpha1.governed import governed
from rljob_api.v1alpha1.own_functions import OwnAdvantage, OwnLoss
from rljob_api.v1alpha1.presets import LOSS_SETTINGS, PRESETS
from rljob_api.v1alpha1.rollout_correction import RolloutCorrection, of_correction, rejections
from rljob_api.v1alpha1.teacher import Teacher
from rljob_api.v1alpha1.terms import (
    PAIRED,
    Advantage,
    Aggregation,
    KlController,
    KlEstimator,
    KlPlacement,
    Loss,
    Preset,
    StepwiseAdvantage,
)

__all__ = [
    "Advantage",
    "Aggregation",
    "Algorithm",
    "DynamicSampling",
    "Kl",
    "KlEstimator",
    "Loss",
    "Preset",
    "of_preset",
    "or_own",
]


def of_preset(field: str, column: str, owner: str = "self") -> str:
    """CEL for the value that a field of the algorithm has once its preset has filled it. column: of PresetRow."""
    return governed(field, {preset: getattr(row, column) for preset, row in PRESETS.items()}, owner)


def or_own(field: str, owner: str = "self") -> str:
    """CEL for the value of advantage or loss, which is custom with a function of the user's own."""
    return f"(has({owner}.{field}From) ? 'custom' : {of_preset(field, field, owner)})"


_ADVANTAGE = or_own("advantage")
_LOSS = or_own("loss")
_ALPHA = of_preset("lambdaAlpha", "lambda_alpha")
_AGGREGATION = of_preset("aggregation", "aggregation")
_PLACEMENT = of_preset("kl.placement", "kl_placement")
_COEFFICIENT = of_preset("kl.coefficient", "kl_coefficient")
_CONTROLLER = of_preset("kl.controller", "kl_controller")
_DYNAMIC = of_preset("dynamicSampling.enabled", "dynamic_sampling_enabled")

_TWO_SIDED: tuple[Loss, ...] = ("decoupled_clip", "gspo", "geo_mean", "cispo", "clip_cov", "dppo_tv", "dppo_kl")


def _with_losses(*losses: Loss) -> tuple[str, str]:
    """A field that these losses read."""
    words = " or ".join(filter(None, (", ".join(losses[:-1]), losses[-1])))
    return f"{_LOSS} in {list(losses)}", f"loss is {words}"


def _set_or(field: str, default: float) -> str:
    return f"(has(self.{field}) ? double(self.{field}) : {default:.1f})"


_CLIPPING: tuple[Loss, ...] = tuple(
    loss for loss in get_args(Loss) if loss not in {"kl_cov", "gpg", "sapo", "sppo", *PAIRED}
)

_PENALTY = (
    f"{_PLACEMENT} != 'none' && double({_COEFFICIENT}) > 0.0",
    "kl.placement is loss or reward, and kl.coefficient is above 0",
)

_REFERENCE = (
    f"{_PENALTY[0]} || {_LOSS} in {list(PAIRED)}",
    f"{_PENALTY[1]}, or loss is {' or '.join(PAIRED)}",
)

PER_STEP = "has(self.stepwiseAdvantage) && self.stepwiseAdvantage == 'per_step'"

_COVARIANCE = LOSS_SETTINGS["clip_cov"]

EFFECTIVE = {
    "clipRatio": _with_losses("clip", "dual_clip"),
    "clipRatioLow": _with_losses(*_TWO_SIDED),
    "clipRatioHigh": _with_losses(*_TWO_SIDED),
    "clipRatioC": _with_losses("dual_clip", "dppo_tv", "dppo_kl"),
    "tauPos": _with_losses("sapo"),
    "tauNeg": _with_losses("sapo"),
    "clipCovRatio": _with_losses("clip_cov"),
    "clipCovLb": _with_losses("clip_cov"),
    "clipCovUb": _with_losses("clip_cov"),
    "klCovRatio": _with_losses("kl_cov"),
    "ppoKlCoef": _with_losses("kl_cov"),
    "dpoBeta": _with_losses("dpo"),
    "sppoEta": _with_losses("sppo"),
    "gamma": (
        f"{_ADVANTAGE} in ['reinforce_plus_plus', 'gae', 'gigpo', 'custom'] || {PER_STEP}",
        "advantage is reinforce_plus_plus, gae, gigpo or one of your own, or stepwiseAdvantage is per_step",
    ),
    "stepwiseAdvantage": (
        f"!({_ADVANTAGE} in ['reinforce_plus_plus', 'gae', 'gigpo', 'remax', 'best_worst', 'distillation', 'custom'])",
        "advantage compares the episodes of a group, and is neither gigpo, best_worst nor one of your own",
    ),
    "stepAdvantageW": (f"{_ADVANTAGE} == 'gigpo'", "advantage is gigpo"),
    "lambda": (
        f"{_ADVANTAGE} in ['gae', 'custom'] && double({_ALPHA}) == 0.0",
        "advantage is gae, or one of your own, and lambdaAlpha is 0",
    ),
    "lambdaAlpha": (f"{_ADVANTAGE} == 'gae'", "advantage is gae"),
    "kl.estimator": (f"{_PLACEMENT} != 'none'", "kl.placement is loss or reward"),
    "kl.coefficient": (f"{_PLACEMENT} != 'none'", "kl.placement is loss or reward"),
    "kl.controller": _PENALTY,
    "kl.target": (f"{_CONTROLLER} == 'adaptive'", "kl.controller is adaptive"),
    "kl.horizon": (f"{_CONTROLLER} == 'adaptive'", "kl.controller is adaptive"),
    "kl.clip": _PENALTY,
    "kl.refreshEvery": _REFERENCE,
    "earlyStop.clipFraction": _with_losses(*_CLIPPING),
    **{
        f"dynamicSampling.{field}": (_DYNAMIC, "dynamicSampling.enabled is true")
        for field in ("maxRounds", "minAccuracy", "maxAccuracy", "hardRetries")
    },
}
"""When a field has an effect: as CEL over the algorithm, and as text."""

_IN_LOSS_ALONE = f"{_ADVANTAGE} == 'distillation' && has(self.teacher) && self.teacher.topK > 0"
"""CEL that is true if the teacher's signal is a term of the loss, and all advantages are 0."""

_WEIGHS_ADVANTAGES = (
    "loss", "clipRatio", "clipRatioLow", "clipRatioHigh", "clipRatioC", "tauPos", "tauNeg", "clipCovRatio", "clipCovLb",
    "clipCovUb", "klCovRatio", "ppoKlCoef", "earlyStop.clipFraction",
)  # fmt: skip
"""The fields of losses that are 0 if all advantages are."""

_CORRECTION = "self.rolloutCorrection"
_BYPASS = of_correction("bypassMode", "bypass_mode", _CORRECTION)
_CORRECTED = (
    f"{of_correction('rolloutIs', 'rollout_is', _CORRECTION)} != 'none' || {_BYPASS} || {rejections(_CORRECTION)} > 0"
)
_REINFORCE = f"{of_correction('lossType', 'loss_type', _CORRECTION)} == 'reinforce'"

UNSET = ("kl.clip", "kl.refreshEvery", "earlyStop.kl", "earlyStop.clipFraction", "dynamicSampling.minAccuracy",
    "dynamicSampling.maxAccuracy", "dynamicSampling.hardRetries", "stepwiseAdvantage", "stepAdvantageW",
    "advantageFrom", "lossFrom", "teacher",
)  # fmt: skip
"""The fields that no preset sets."""

GOVERNED = (
    *(
        "advantage",
        "loss",
        "aggregation",
        "entropyCoefficient",
        "positiveNllCoefficient",
        "kl.placement",
        "dynamicSampling.enabled",
    ),
    *(field for field in EFFECTIVE if field not in UNSET),
)
"""The fields that a preset governs."""

_CORRECTS = " || ".join(
    (
        f"{_CORRECTION}.preset != 'disabled'",
        "double(self.dynamicSampling.oversample) != 0.0",
        *(f"has({_CORRECTION}.{field})" for field in ("rolloutIs", "rolloutRs", "bypassMode")),
    )
)


def _any_override(*read: str) -> str:
    """CEL that is true if a field is set besides those that the preset reads."""
    return " || ".join((*(f"has(self.{field})" for field in (*GOVERNED, *UNSET) if field not in read), _CORRECTS))


class Kl(ApiModel):
    """The penalty for leaving the reference model, which is the policy before its first RL step, or a later one.

    Loss dpo compares with the same reference.
    """

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
            "fixed keeps the coefficient; adaptive steers the divergence towards target (Ziegler et al. 2019, section"
            " 2.2)."
        ),
    )
    target: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        None,
        description=(
            "Divergence that the adaptive controller steers to, in nats, added up over a response; the default is 6."
        ),
    )
    horizon: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = Field(
        None, description="Samples over which the adaptive controller reacts; in the loss, once for each epoch."
    )
    clip: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        None,
        description=(
            "Largest size of a token's estimate, in nats; a token beyond it adds this much and has no gradient from the"
            " penalty. Without it, estimates have no bound. verl bounds k3 by 10."
        ),
    )
    refresh_every: Count | None = Field(
        None,
        description=(
            "RL steps after which the policy as it then is becomes the reference. Without it, the reference stays the"
            " policy before the first RL step."
        ),
    )


Accuracy = Annotated[float, Field(ge=-1_000_000, le=1_000_000)]


class DynamicSampling(ApiModel):
    """Replace groups whose rewards are all equal, because their advantages are 0 (DAPO), or too easy or too hard ones.

    The accuracy of a group is the mean of its rewards without those of the builtin length_penalty.
    """

    enabled: bool | None = Field(
        None,
        description=(
            "Replace groups whose rewards are all equal; with stepwiseAdvantage per_step those whose turns have equal"
            " returns, and with gigpo those that are equal in both."
        ),
    )
    max_rounds: Annotated[int, Field(ge=1, le=100)] | None = Field(
        None, description="Largest number of sampling rounds of one step; then the step uses the groups that it has."
    )
    min_accuracy: Accuracy | None = Field(None, description="Replace groups whose accuracy is below it: too hard.")
    max_accuracy: Accuracy | None = Field(None, description="Replace groups whose accuracy is above it: too easy.")
    hard_retries: Annotated[int, Field(ge=1, le=100)] | None = Field(
        None,
        description=(
            "How often a prompt whose group is below minAccuracy is sampled again, with other seeds, each time in the"
            " step after. What waits when the run ends, at its last step or the end of its data, is not sampled again."
        ),
    )
    oversample: Annotated[float, Field(ge=0, le=10)] = Field(
        0.0,
        description=(
            "Groups that a round begins beyond those that it needs, as a share of these. Once enough are finished, the"
            " others are aborted, and their prompts left out until the next epoch (verl's over_sample_rate)."
        ),
    )

    rules = (
        Rule(
            "!has(self.minAccuracy) || !has(self.maxAccuracy) || self.minAccuracy < self.maxAccuracy",
            "no group is between the bounds: set dynamicSampling.minAccuracy below dynamicSampling.maxAccuracy",
            "maxAccuracy",
        ),
        Rule(
            "!has(self.hardRetries) || has(self.minAccuracy)",
            "dynamicSampling.minAccuracy says which prompts hardRetries samples again: set it",
            "hardRetries",
        ),
    )


class EarlyStop(ApiModel):
    """When a step makes no more updates of its samples: before the update of a minibatch that exceeds a bound."""

    kl: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        None,
        description=(
            "Largest mean divergence of a minibatch's tokens from the policy at the start of the step (k3), in nats."
        ),
    )
    clip_fraction: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="Largest share of a minibatch's tokens that the loss clips."
    )


class Algorithm(ApiModel):
    """How rewards become gradients."""

    preset: Preset = Field(
        "grpo",
        description=(
            "Named algorithm that sets every omitted field of spec.algorithm. sft is supervised fine-tuning, and dpo"
            " learns from pairs of given responses: they read neither rollout nor rewards."
        ),
    )
    advantage: Advantage | None = Field(None, description="Advantage estimator.")
    advantage_from: OwnAdvantage | None = Field(
        None, description="An advantage estimator of your own, in place of advantage."
    )
    loss: Loss | None = Field(None, description="Policy loss.")
    loss_from: OwnLoss | None = Field(None, description="A policy loss of your own, in place of loss.")
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
    clip_ratio_low: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description=(
            "Lower clip range: the ratio stays above 1 - clipRatioLow (decoupled_clip, gspo, cispo, clip_cov), its"
            " logarithm above -clipRatioLow (geo_mean), or the divergence downwards below it (dppo_tv, dppo_kl)."
        ),
    )
    clip_ratio_high: Annotated[float, Field(gt=0, le=10)] | None = Field(
        None,
        description=(
            "Upper clip range: the ratio stays below 1 + clipRatioHigh (decoupled_clip, gspo, cispo, clip_cov), its"
            " logarithm below clipRatioHigh (geo_mean), or the divergence upwards below it (dppo_tv, dppo_kl)."
        ),
    )
    clip_ratio_c: Annotated[float, Field(gt=1, le=10000)] | None = Field(
        None,
        description=(
            "Upper bound of the ratio for negative advantages in dual_clip, and of a token's weight in dppo_tv and"
            " dppo_kl."
        ),
    )
    tau_pos: Annotated[float, Field(gt=0, le=100)] | None = Field(
        None, description="How fast sapo's gate closes for positive advantages; larger is faster."
    )
    tau_neg: Annotated[float, Field(gt=0, le=100)] | None = Field(
        None, description="How fast sapo's gate closes for the other advantages; larger is faster."
    )
    clip_cov_ratio: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Share of all tokens that clip_cov leaves out, at most."
    )
    clip_cov_lb: Annotated[float, Field(ge=-1000, le=1000)] | None = Field(
        None, description="clip_cov leaves out only tokens with a covariance of log-probability and advantage above it."
    )
    clip_cov_ub: Annotated[float, Field(ge=-1000, le=1000)] | None = Field(
        None, description="clip_cov leaves out only tokens with a covariance below it."
    )
    kl_cov_ratio: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Share of all tokens, those with the highest covariance, that kl_cov penalizes."
    )
    ppo_kl_coef: Annotated[float, Field(gt=0, le=100)] | None = Field(None, description="Weight of kl_cov's penalty.")
    dpo_beta: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        None,
        description=(
            "How strongly dpo holds the policy near the reference: the implicit reward is dpoBeta times the"
            " log-probability ratio of policy and reference."
        ),
    )
    sppo_eta: Annotated[float, Field(gt=0, le=1_000_000)] | None = Field(
        None,
        description="How far from the old policy sppo's target is: the log-probability ratio of a sure win is half.",
    )
    gamma: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description=(
            "Discount of token rewards in reinforce_plus_plus and gae, and of rewards of turns in gigpo and per_step."
        ),
    )
    stepwise_advantage: StepwiseAdvantage | None = Field(
        None,
        description=(
            "What the turns of an episode share (rLLM's stepwise_advantage.mode): with broadcast, the default, its"
            " advantage; with per_step each turn has its own, from the discounted rewards that follow it, compared with"
            " the same turn of other episodes of its group."
        ),
    )
    step_advantage_w: Annotated[float, Field(ge=0, le=1000)] | None = Field(
        None,
        description=(
            "Weight of gigpo's comparison of turns that begin in the same state (verl-agent's step_advantage_w); the"
            " default is 1."
        ),
    )
    lambda_: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None,
        description=(
            "How far gae looks: 1 takes all later rewards, 0 the next reward and value (verl's lam). Lower values have"
            " less variance, and more of the critic's errors."
        ),
    )
    lambda_alpha: Annotated[float, Field(ge=0, le=1000)] | None = Field(
        None,
        description=(
            "Above 0, gae's lambda follows the response's length l: 1 - 1 / (lambdaAlpha l), at least 0 (VAPO; 0.05 in"
            " its paper). The critic's returns keep critic.lambda."
        ),
    )
    teacher: Teacher | None = Field(
        None, description="A model that the policy learns from (on-policy distillation); preset distillation needs it."
    )
    kl: Kl = Field(default_factory=Kl, description="Penalty for leaving the reference model.")
    entropy_coefficient: Annotated[float, Field(ge=0, le=10)] | None = Field(
        None, description="Weight of the entropy bonus, which keeps the policy exploring."
    )
    positive_nll_coefficient: Annotated[float, Field(ge=0, le=10)] | None = Field(
        None,
        description=(
            "Weight of -log p of the tokens of responses with a reward above 0, which is added to the loss (VAPO; 0.1"
            " in its paper)."
        ),
    )
    early_stop: EarlyStop = Field(
        default_factory=EarlyStop, description="Bounds beyond which a step makes no more updates of its samples."
    )
    dynamic_sampling: DynamicSampling = Field(
        default_factory=DynamicSampling, description="Replacement of groups whose rewards are all equal."
    )
    rollout_correction: RolloutCorrection = Field(
        default_factory=RolloutCorrection,
        description="Correction of the difference between the engine that sampled and the trainer.",
    )

    rules = (
        *(
            Rule(
                f"!has(self.{field}) || (self.{field} == 'custom') == has(self.{field}From)",
                f"algorithm.{field} is custom with a function of your own in {field}From, and only then: set"
                f" {field}From, or change {field}",
                field,
            )
            for field in ("advantage", "loss")
        ),
        *(
            Rule(
                f"!has(self.{field}) || {condition}",
                f"algorithm.{field} has an effect only if {words}: remove it, or change that",
                field,
            )
            for field, (condition, words) in EFFECTIVE.items()
        ),
        *(
            Rule(
                f"!has(self.{field}) || has(self.lossFrom) || !({_IN_LOSS_ALONE})",
                "with advantage distillation and teacher.topK all advantages are 0, and so is the policy's own loss:"
                " remove loss, its settings and earlyStop.clipFraction, or remove teacher.topK",
                field,
            )
            for field in _WEIGHS_ADVANTAGES
        ),
        Rule(
            f"{_set_or('clipCovLb', _COVARIANCE.clip_cov_lb)} < {_set_or('clipCovUb', _COVARIANCE.clip_cov_ub)}",
            "no covariance is above clipCovLb and below clipCovUb: set algorithm.clipCovUb above algorithm.clipCovLb",
            "clipCovUb",
        ),
        Rule(
            f"!{_BYPASS} || ({_REINFORCE} ? {_LOSS} == 'gpg' : !({_LOSS} in ['gpg', 'clip_cov', 'kl_cov']))",
            "with rolloutCorrection.bypassMode, lossType reinforce needs algorithm.loss gpg, and ppo_clip a loss with a"
            " ratio to the old policy: neither gpg, clip_cov nor kl_cov",
            "loss",
        ),
        Rule(
            f"self.preset != 'sft' || !({_any_override()})",
            "preset sft reads no other field of algorithm: remove the other fields, or choose an RL preset",
            "preset",
        ),
        Rule(
            f"self.preset != 'dpo' || !({_any_override('dpoBeta')})",
            "preset dpo reads no other field of algorithm than dpoBeta: remove the other fields, or choose online_dpo",
            "preset",
        ),
        Rule(
            f"{_LOSS} != 'dpo' || {_ADVANTAGE} == 'best_worst' && {_AGGREGATION} == 'sequence_mean'"
            f" && {_PLACEMENT} != 'reward' && !({_CORRECTED})",
            "loss dpo compares whole responses of a prompt: it needs advantage best_worst, aggregation sequence_mean,"
            " kl.placement none or loss, and no rolloutCorrection; preset online_dpo sets them",
            "loss",
        ),
        Rule(
            f"{_ADVANTAGE} != 'best_worst' || {_PLACEMENT} != 'reward'",
            "advantage best_worst reads only the order of rewards: set kl.placement to none or loss, or choose another"
            " advantage",
            "advantage",
        ),
        Rule(
            f"self.preset != 'spin' || {_LOSS} == 'dpo' && !{_DYNAMIC}",
            "preset spin pairs each row's response with a sampled one: remove loss and dynamicSampling.enabled, or"
            " choose another preset",
            "preset",
        ),
        Rule(
            f"{_ADVANTAGE} != 'distillation' || has(self.teacher)",
            "advantage distillation learns from a teacher: set algorithm.teacher.path or"
            " algorithm.teacher.server, or choose another preset",
            "teacher",
        ),
        Rule(
            f"{_ADVANTAGE} != 'distillation' || {_PLACEMENT} != 'reward' && !{_DYNAMIC}",
            "advantage distillation reads no rewards: set kl.placement to none or loss, and remove"
            " dynamicSampling.enabled, or choose another advantage",
            "advantage",
        ),
        Rule(
            f"!has(self.teacher) || !({_LOSS} in {[*PAIRED, 'sppo']})",
            "losses dpo and sppo compare whole responses, and a teacher has a signal for each token: remove"
            " algorithm.teacher, or choose another loss",
            "teacher",
        ),
    )
