"""Resolves a spec: fills in every field for the driver and for `rljob show`."""

from dataclasses import asdict
from typing import Any

from rljob_api.v1alpha1.actor import Actor
from rljob_api.v1alpha1.algorithm import Algorithm, DynamicSampling, Kl
from rljob_api.v1alpha1.cluster import Cluster
from rljob_api.v1alpha1.critic import Critic
from rljob_api.v1alpha1.model import FromScratch, Lora, Model
from rljob_api.v1alpha1.presets import LOSS_SETTINGS, PRESETS
from rljob_api.v1alpha1.rljob import RLJobSpec
from rljob_api.v1alpha1.rollout_correction import CORRECTIONS, BypassLoss, Rejecting, RolloutCorrection, Weighting
from rljob_api.v1alpha1.terms import (
    OFFLINE,
    PAIRED,
    Advantage,
    Aggregation,
    KlController,
    KlEstimator,
    KlPlacement,
    Loss,
)


class ResolvedFromScratch(FromScratch):
    kv_heads: int
    intermediate_size: int


class ResolvedLora(Lora):
    """rank, alpha, target_modules: None if an adapter in `path` decides them, until the trainer has read it."""

    @property
    def scale(self) -> float:
        """What the product of the two matrices is multiplied by."""
        assert self.rank is not None
        assert self.alpha is not None
        return self.alpha / self.rank


class ResolvedModel(Model):
    from_scratch: ResolvedFromScratch | None
    lora: ResolvedLora | None


class ResolvedActor(Actor):
    mini_batch_size: int


class ResolvedCritic(Critic):
    warmup_steps: int
    epochs: int
    mini_batch_size: int
    lambda_: float

    @property
    def adapter(self) -> ResolvedLora | None:
        """Of `lora`, as a policy's, counted once."""
        if self.lora is None:
            return None
        modules = self.lora.target_modules or ["all-linear"]
        return ResolvedLora(rank=self.lora.rank, alpha=float(self.lora.rank), target_modules=modules)


class ResolvedCluster(Cluster):
    ranks_per_node: int


class ResolvedKl(Kl):
    placement: KlPlacement
    estimator: KlEstimator
    coefficient: float
    controller: KlController
    target: float
    horizon: int


class ResolvedDynamicSampling(DynamicSampling):
    enabled: bool
    max_rounds: int


class ResolvedRolloutCorrection(RolloutCorrection):
    rollout_is: Weighting
    rollout_is_threshold: str
    rollout_is_batch_normalize: bool
    rollout_rs: list[Rejecting]
    rollout_rs_threshold: list[str]
    bypass_mode: bool
    loss_type: BypassLoss


class ResolvedAlgorithm(Algorithm):
    advantage: Advantage
    loss: Loss
    aggregation: Aggregation
    clip_ratio: float
    clip_ratio_low: float
    clip_ratio_high: float
    clip_ratio_c: float
    tau_pos: float
    tau_neg: float
    clip_cov_ratio: float
    clip_cov_lb: float
    clip_cov_ub: float
    kl_cov_ratio: float
    ppo_kl_coef: float
    dpo_beta: float
    sppo_eta: float
    gamma: float
    lambda_: float
    lambda_alpha: float
    kl: ResolvedKl
    entropy_coefficient: float
    positive_nll_coefficient: float
    dynamic_sampling: ResolvedDynamicSampling
    rollout_correction: ResolvedRolloutCorrection


class ResolvedSpec(RLJobSpec):
    """A spec in which every effective field has a value."""

    model: ResolvedModel
    algorithm: ResolvedAlgorithm
    actor: ResolvedActor
    critic: ResolvedCritic | None
    cluster: ResolvedCluster

    @property
    def ranks(self) -> int:
        """Number of trainer processes."""
        return self.cluster.nodes * self.cluster.ranks_per_node

    @property
    def needs_reference(self) -> bool:
        """Whether the KL penalty or the loss needs the policy from before the first step of RL, or of preset dpo."""
        return self.pairs or (self.algorithm.kl.placement != "none" and self.algorithm.kl.coefficient > 0)

    @property
    def rewarded(self) -> bool:
        """Whether anything scores responses; only distillation and spin work without."""
        return bool(self.rewards.functions or self.rewards.models or self.environment is not None)

    @property
    def pairs_with_rows(self) -> bool:
        """Whether each sampled response is compared with its row's own (spin)."""
        return self.algorithm.preset == "spin"

    @property
    def kl_in_reward(self) -> bool:
        """Whether the KL penalty is subtracted from the rewards, so that advantages need it."""
        return self.algorithm.kl.placement == "reward" and self.needs_reference

    @property
    def teacher_top_k(self) -> int:
        """How many of the teacher's likeliest tokens the loss compares; 0 without them."""
        return self.algorithm.teacher.top_k if self.algorithm.teacher is not None else 0

    @property
    def teaches_sampled_tokens(self) -> bool:
        """Whether a teacher's log-probability of each sampled token is part of the token's advantage."""
        return self.algorithm.teacher is not None and not self.teacher_top_k

    def refreshes_reference(self, step: int) -> bool:
        """Whether the policy after step `step`, counted from 1 over the whole run, becomes the reference."""
        every, before = self.algorithm.kl.refresh_every, self.sft.steps if self.sft else 0
        return every is not None and step > before and (step - before) % every == 0

    @property
    def pairs(self) -> bool:
        """Whether the loss reads pairs of a preferred and a rejected response."""
        return self.algorithm.loss in PAIRED

    @property
    def supervised_only(self) -> bool:
        """Whether the run learns from given responses and has no RL steps."""
        return self.algorithm.preset in OFFLINE

    @property
    def total_steps(self) -> int:
        """Number of supervised and RL steps. If training.epochs limits them, the trainer sets training.steps first."""
        assert self.training.steps is not None, "the number of rows is not known yet"
        return self.training.steps + (self.sft.steps if self.sft else 0)


def resolve(spec: RLJobSpec) -> ResolvedSpec:
    """Fill every field that a preset or another field governs. Pure: equal specs give equal results.

    What the spec says always wins over the preset.
    """
    filled = spec.model_dump()
    filled["algorithm"] = _algorithm(spec.algorithm)
    filled["actor"]["mini_batch_size"] = spec.actor.mini_batch_size or spec.data.prompts_per_step
    needs_values = filled["algorithm"]["advantage"] == "gae"
    filled["critic"] = _critic(spec.critic or Critic(), filled) if needs_values or spec.critic is not None else None
    filled["cluster"]["ranks_per_node"] = spec.cluster.ranks_per_node or spec.cluster.gpus_per_node or 1
    scratch = filled["model"]["from_scratch"]
    if scratch is not None:
        scratch["kv_heads"] = scratch["kv_heads"] or scratch["heads"]
        scratch["intermediate_size"] = scratch["intermediate_size"] or 4 * scratch["hidden_size"]
    lora = filled["model"]["lora"]
    if lora is not None and lora["path"] is None:
        defaults = {"rank": 32, "alpha": 32.0, "target_modules": ["all-linear"]}
        lora |= {name: default for name, default in defaults.items() if lora[name] is None}
    return ResolvedSpec.model_validate(filled)


def _critic(critic: Critic, filled: dict[str, Any]) -> dict[str, object]:
    """filled: actor and algorithm with every effective field."""
    governed = {
        "epochs": filled["actor"]["epochs"],
        "mini_batch_size": filled["actor"]["mini_batch_size"],
        "lambda_": filled["algorithm"]["lambda_"],
        "warmup_steps": PRESETS[filled["algorithm"]["preset"]].critic_warmup_steps,
    }
    return critic.model_dump() | governed | critic.model_dump(include=set(governed), exclude_none=True)


def _algorithm(algorithm: Algorithm) -> dict[str, object]:
    row = PRESETS[algorithm.preset]
    preset = {
        "preset": algorithm.preset,
        "advantage": row.advantage,
        "loss": row.loss,
        "aggregation": row.aggregation,
        "gamma": row.gamma,
        "lambda_": row.lambda_,
        "lambda_alpha": row.lambda_alpha,
        "entropy_coefficient": row.entropy_coefficient,
        "positive_nll_coefficient": row.positive_nll_coefficient,
    }
    kl = {
        "placement": row.kl_placement,
        "estimator": row.kl_estimator,
        "coefficient": row.kl_coefficient,
        "controller": row.kl_controller,
        "target": row.kl_target,
        "horizon": row.kl_horizon,
    }
    sampling = {"enabled": row.dynamic_sampling_enabled, "max_rounds": row.dynamic_sampling_max_rounds}
    correction = asdict(CORRECTIONS[algorithm.rollout_correction.preset])
    written = algorithm.model_dump(exclude_none=True)
    return (
        preset
        | asdict(LOSS_SETTINGS[algorithm.loss or row.loss])
        | written
        | {name: "custom" for name in ("advantage", "loss") if f"{name}_from" in written}
        | {
            "kl": kl | written.get("kl", {}),
            "dynamic_sampling": sampling | written.get("dynamic_sampling", {}),
            "rollout_correction": correction | written.get("rollout_correction", {}),
        }
    )
