"""The words of `spec.algorithm`, shared by its fields and by the table of presets."""

from typing import Literal

Preset = Literal["grpo", "dapo", "dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "sft"]
Advantage = Literal["grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"]
Loss = Literal["clip", "dual_clip", "decoupled_clip"]
Aggregation = Literal["token_mean", "sequence_mean", "dr_grpo"]
KlPlacement = Literal["none", "loss", "reward"]
KlEstimator = Literal["k1", "k2", "k3"]
KlController = Literal["fixed", "adaptive"]
