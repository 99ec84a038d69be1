"""The words of `spec.algorithm`, shared by its fields and by the table of presets."""

from typing import Literal

Preset = Literal[
    "grpo", "dapo", "dr_grpo", "rloo", "remax", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gspo", "gmpo",
    "cispo", "sapo", "clip_cov", "kl_cov", "dppo", "topr", "gpg", "opo", "maxrl", "ppo", "vapo", "online_dpo",
    "sppo", "spin", "distillation",
    "sft", "dpo",
]  # fmt: skip
Advantage = Literal[
    "grpo", "dr_grpo", "rloo", "remax", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "opo", "gpg",
    "grpo_passk", "maxrl", "gae", "best_worst", "win_rate", "gigpo", "distillation",
    "custom",
]  # fmt: skip
StepwiseAdvantage = Literal["broadcast", "per_step"]
Loss = Literal[
    "clip", "dual_clip", "decoupled_clip", "gspo", "geo_mean", "cispo", "sapo", "clip_cov", "kl_cov", "gpg", "dppo_tv",
    "dppo_kl", "topr", "dpo", "sppo", "custom",
]  # fmt: skip
WITHOUT_GROUPS: tuple[Advantage, ...] = ("reinforce_plus_plus", "remax", "gae", "distillation", "custom")
"""Advantages that need no second sample of a prompt."""
LrSchedule = Literal["constant", "linear", "cosine", "wsd"]
Aggregation = Literal["token_mean", "sequence_mean", "dr_grpo"]
OFFLINE: tuple[Preset, ...] = ("sft", "dpo")
"""The presets without RL steps: they learn from given responses."""
PAIRED: tuple[Loss, ...] = ("dpo",)
"""The losses of a preferred and a rejected response, which one forward pass sees together."""
KlPlacement = Literal["none", "loss", "reward"]
KlEstimator = Literal["k1", "k2", "k3"]
KlController = Literal["fixed", "adaptive"]
