"""verl's settings of advantage, loss, KL penalty, groups and rollout correction, as verl_rules.py has the others."""

from collections.abc import Callable
from typing import Any, Final

from rljob_trainer.convert.conversion import Conversion

ACTOR: Final = "actor_rollout_ref.actor"
ROLLOUT: Final = "actor_rollout_ref.rollout"

ADVANTAGES: Final = {
    "grpo": "grpo",
    "grpo_vectorized": "grpo",
    "grpo_passk": "grpo_passk",
    "reinforce_plus_plus": "reinforce_plus_plus",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "remax": "remax",
    "opo": "opo",
    "gpg": "gpg",
}
"""verl's algorithm.adv_estimator."""

LOSSES: Final = {
    "gspo": "gspo",
    "sapo": "sapo",
    "gpg": "gpg",
    "clip_cov": "clip_cov",
    "kl_cov": "kl_cov",
    "geo_mean": "geo_mean",
    "cispo": "cispo",
    "dppo_tv": "dppo_tv",
    "dppo_kl": "dppo_kl",
}
"""verl's actor.policy_loss.loss_mode, besides vanilla."""

AGGREGATIONS: Final = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum-norm": "dr_grpo",
}
BY_SEQUENCE: Final = ("gspo", "sapo", "geo_mean")
"""Losses that verl averages by sequence, whatever loss_agg_mode says."""

ESTIMATORS: Final = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
K3_BOUND: Final = 10.0
"""verl bounds k3 by it, in core_algos.kl_penalty."""


_GPG: Final = "verl scales by the share of responses with a reward other than 0, here of groups that differ in reward"


def advantage(c: Conversion) -> None:
    estimator = c.get("algorithm.adv_estimator", "gae")
    by_deviation = c.get("algorithm.norm_adv_by_std_in_grpo", default=True)
    gamma, decay = c.number("algorithm.gamma", 1.0), c.number("algorithm.lam", 1.0)
    if estimator == "gae":
        c.put("algorithm.advantage", "gae")
        c.put("algorithm.gamma", gamma)
        c.put("algorithm.lambda", decay)
    elif estimator in {"grpo", "grpo_vectorized"} and not by_deviation:
        c.put("algorithm.advantage", "dr_grpo")
    elif estimator in ADVANTAGES:
        c.put("algorithm.advantage", ADVANTAGES[estimator], _GPG if estimator == "gpg" else "")
        if estimator == "grpo_passk" and not by_deviation:
            c.leave("algorithm.norm_adv_by_std_in_grpo", "grpo_passk divides by the group's deviation")
        if estimator == "reinforce_plus_plus":
            c.put("algorithm.gamma", gamma)
    else:
        c.require("algorithm.advantage", f"verl's estimator {estimator} is not one of RLJob's")


def loss(c: Conversion) -> None:
    mode = c.get(f"{ACTOR}.policy_loss.loss_mode", "vanilla")
    both = c.number(f"{ACTOR}.clip_ratio", 0.2)
    low, high = c.number(f"{ACTOR}.clip_ratio_low", 0.2), c.number(f"{ACTOR}.clip_ratio_high", 0.2)
    bound = c.number(f"{ACTOR}.clip_ratio_c", 3.0)
    if both not in {low, high}:
        c.leave(f"{ACTOR}.clip_ratio", "verl reads clip_ratio_low and clip_ratio_high in its place")
    if mode == "vanilla":
        vanilla(c, low, high, bound)
    elif mode in LOSSES:
        c.put("algorithm.loss", LOSSES[mode])
        _settings_of(c, mode, low, high, bound)
    else:
        c.require("algorithm.loss", f"verl's loss {mode} is not one of RLJob's")
    _aggregation(c, mode)


def vanilla(c: Conversion, low: float, high: float, bound: float) -> None:
    """verl's loss is the dual clip; its two bounds may differ, and those of RLJob's dual_clip may not."""
    if low == high:
        c.put("algorithm.loss", "dual_clip", "verl's loss vanilla")
        c.put("algorithm.clipRatio", low)
        c.put("algorithm.clipRatioC", bound)
        return
    c.put("algorithm.loss", "decoupled_clip", f"verl also bounds the loss of bad tokens with a ratio above {bound}")
    c.put("algorithm.clipRatioLow", low)
    c.put("algorithm.clipRatioHigh", high)


def _settings_of(c: Conversion, mode: str, low: float, high: float, bound: float) -> None:
    policy = f"{ACTOR}.policy_loss"
    if mode in {"gspo", "geo_mean", "cispo", "clip_cov", "dppo_tv", "dppo_kl"}:
        c.put("algorithm.clipRatioLow", min(low, 1.0), "1 is no lower bound" if low > 1 else "")
        c.put("algorithm.clipRatioHigh", high)
    if mode in {"dppo_tv", "dppo_kl"}:
        c.put("algorithm.clipRatioC", bound)
    by_loss = {
        "sapo": {"tauPos": (f"{ACTOR}.tau_pos", 1.0), "tauNeg": (f"{ACTOR}.tau_neg", 1.05)},
        "clip_cov": {
            "clipCovRatio": (f"{policy}.clip_cov_ratio", 0.0002),
            "clipCovLb": (f"{policy}.clip_cov_lb", 1.0),
            "clipCovUb": (f"{policy}.clip_cov_ub", 5.0),
        },
        "kl_cov": {
            "klCovRatio": (f"{policy}.kl_cov_ratio", 0.0002),
            "ppoKlCoef": (f"{policy}.ppo_kl_coef", 0.1),
        },
    }
    for name, (key, default) in by_loss.get(mode, {}).items():
        c.put(f"algorithm.{name}", c.number(key, default))


def _aggregation(c: Conversion, mode: str) -> None:
    for name in ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef"):
        c.get(f"{ACTOR}.policy_loss.{name}")
    c.get(f"{ACTOR}.tau_pos")
    c.get(f"{ACTOR}.tau_neg")
    key = f"{ACTOR}.loss_agg_mode"
    asked = c.get(key, "token-mean")
    if mode in BY_SEQUENCE:
        c.put("algorithm.aggregation", "sequence_mean")
    elif asked in AGGREGATIONS:
        older = "verl before 0.8 does not divide by the number of responses"
        note = older if asked == "seq-mean-token-sum-norm" else ""
        c.put("algorithm.aggregation", AGGREGATIONS[asked], note)
    else:
        c.leave(key, "choose one of token_mean, sequence_mean and dr_grpo in algorithm.aggregation")


_TARGET: Final = "verl's is of a token, and this one of a whole response: multiply it by the responses' usual length"


def kl(c: Conversion) -> None:
    in_loss = c.get(f"{ACTOR}.use_kl_loss", default=False)
    in_reward = c.get("algorithm.use_kl_in_reward", default=False)
    loss_coefficient = c.number(f"{ACTOR}.kl_loss_coef", 0.001)
    loss_type = c.get(f"{ACTOR}.kl_loss_type", "low_var_kl")
    penalty, coefficient = c.get("algorithm.kl_penalty", "kl"), c.number("algorithm.kl_ctrl.kl_coef", 0.001)
    controller = {name: c.get(f"algorithm.kl_ctrl.{name}") for name in ("type", "horizon", "target_kl")}
    if in_loss and loss_coefficient > 0:
        _penalty(c, "loss", loss_coefficient, f"{ACTOR}.kl_loss_type", loss_type)
        if in_reward:
            c.leave("algorithm.use_kl_in_reward", "the penalty has one place, and is in the loss")
    elif in_reward and coefficient > 0:
        _penalty(c, "reward", coefficient, "algorithm.kl_penalty", penalty)
        if controller["type"] == "adaptive":
            c.put("algorithm.kl.controller", "adaptive")
            c.put("algorithm.kl.target", controller["target_kl"] or 0.1, _TARGET)
            c.put("algorithm.kl.horizon", controller["horizon"] or 10_000)
    else:
        c.put("algorithm.kl.placement", "none")


def _penalty(c: Conversion, placement: str, coefficient: float, key: str, kind: str) -> None:
    estimator = ESTIMATORS.get(kind.removesuffix("+"))
    c.put("algorithm.kl.placement", placement)
    c.put("algorithm.kl.coefficient", coefficient)
    if estimator is None:
        c.leave(key, "choose one of k1, k2 and k3 in algorithm.kl.estimator")
        return
    straight = placement == "loss" and kind.endswith("+") and estimator != "k2"
    if straight:  # a loss acts only through its gradient
        c.put("algorithm.kl.estimator", "k2", f"verl's {kind} has the gradient of k2")
        return
    c.put("algorithm.kl.estimator", estimator)
    if estimator == "k3":
        c.put("algorithm.kl.clip", K3_BOUND, "verl's bound of k3")


def groups(c: Conversion) -> None:
    prefix = "algorithm.filter_groups"
    rounds = c.number(f"{prefix}.max_num_gen_batches", 0)
    enabled = c.get(f"{prefix}.enable", default=False)
    c.put("algorithm.dynamicSampling.enabled", enabled)
    if enabled:
        endless = "" if rounds else "verl's 0 has no bound"
        c.put("algorithm.dynamicSampling.maxRounds", rounds or 100, endless)
    if c.get(f"{prefix}.metric") == "acc" and enabled:
        half = 0.5 / c.number(f"{ROLLOUT}.n", 1)
        note = "verl's acc: of a group's responses some are right and some wrong; here rewards of 1 and 0"
        c.put("algorithm.dynamicSampling.minAccuracy", half, note)
        c.put("algorithm.dynamicSampling.maxAccuracy", 1 - half)


def correction(c: Conversion) -> None:
    """verl's bounds are numbers or "low_high"; RLJob's are text. The last three settings may be lists with commas."""
    prefix, field = "algorithm.rollout_correction", "algorithm.rolloutCorrection"
    weighting, bypass = c.get(f"{prefix}.rollout_is"), c.get(f"{prefix}.bypass_mode", default=False)
    bound = c.get(f"{prefix}.rollout_is_threshold", 2.0)
    normalize = c.get(f"{prefix}.rollout_is_batch_normalize", default=False)
    rejecting = _listed(c.get(f"{prefix}.rollout_rs", ""))
    bounds = _listed(c.get(f"{prefix}.rollout_rs_threshold", ""))
    kind = c.get(f"{prefix}.loss_type", "ppo_clip")
    if bypass:
        c.put(f"{field}.bypassMode", value=True)
        c.put(f"{field}.lossType", kind)
        if kind == "reinforce":
            c.put("algorithm.loss", "gpg", "verl's loss_type reinforce")
            for name in ("clipRatio", "clipRatioC", "clipRatioLow", "clipRatioHigh"):
                c.fields.pop(f"algorithm.{name}", None)
        elif (mode := c.get(f"{ACTOR}.policy_loss.loss_mode", "vanilla")) not in {"vanilla", "bypass_mode"}:
            c.leave(
                f"{ACTOR}.policy_loss.loss_mode", f"verl's bypass_mode takes vanilla in place of {mode}: choose one"
            )
    if weighting and bypass and kind == "ppo_clip":
        c.leave(f"{prefix}.rollout_is", "with bypassMode, the ratio of ppo_clip corrects by itself")
    elif weighting:
        c.put(f"{field}.rolloutIs", weighting)
        c.put(f"{field}.rolloutIsThreshold", str(bound))
        c.put(f"{field}.rolloutIsBatchNormalize", normalize or None)
    if rejecting:
        c.put(f"{field}.rolloutRs", rejecting)
        c.put(f"{field}.rolloutRsThreshold", bounds)


def _listed(value: Any) -> list[str]:
    values = value if isinstance(value, list) else str(value).split(",")
    return [text for each in values if (text := str(each).strip())]


OBJECTIVE: Final[tuple[Callable[[Conversion], None], ...]] = (advantage, loss, kl, groups)
"""In the order of their fields; `correction` comes last of all."""
