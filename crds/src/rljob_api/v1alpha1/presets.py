"""The named algorithms, one row each: what `algorithm.preset` stands for until a field says otherwise.

grpo: Shao et al. 2024 (https://arxiv.org/abs/2402.03300), equations 3 and 4: the mean of each response, k3 in the
    loss. The coefficient is verl's default; the paper's own run took 0.04.
dapo: Yu et al. 2025 (https://arxiv.org/abs/2503.14476), sections 2.3, 3.1 to 3.3 and 4.1: clip 0.2 and 0.28, the mean
    over tokens, dynamic sampling, no KL.
dr_grpo: Liu et al. 2025 (https://arxiv.org/abs/2503.20783), section 3.2: no division by the standard deviation or by
    the response's length, no KL.
rloo: Ahmadian et al. 2024 (https://arxiv.org/abs/2402.14740): leave-one-out baseline, KL in the reward.
reinforce_plus_plus, and its baseline form: Hu et al. 2025 (https://arxiv.org/abs/2501.03262): k1 in each token's reward
    and normalisation over the batch; the baseline form subtracts the group's mean and takes k2 in the loss.
dual_clip's bound of 3: Ye et al. 2020 (https://arxiv.org/abs/1912.09729).
"""

from dataclasses import dataclass

from rljob_api.v1alpha1.terms import Advantage, Aggregation, KlController, KlEstimator, KlPlacement, Loss, Preset


@dataclass(frozen=True)
class PresetRow:
    """Values of the fields that a preset governs; names and units as in `v1alpha1.algorithm`."""

    advantage: Advantage = "grpo"
    loss: Loss = "clip"
    aggregation: Aggregation = "token_mean"
    clip_ratio: float = 0.2
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.28
    clip_ratio_c: float = 3.0
    gamma: float = 1.0
    kl_placement: KlPlacement = "none"
    kl_estimator: KlEstimator = "k3"
    kl_coefficient: float = 0.001
    kl_controller: KlController = "fixed"
    kl_target: float = 0.1
    kl_horizon: int = 10_000
    entropy_coefficient: float = 0.0
    dynamic_sampling_enabled: bool = False
    dynamic_sampling_max_rounds: int = 4


PRESETS: dict[Preset, PresetRow] = {
    "grpo": PresetRow(aggregation="sequence_mean", kl_placement="loss"),
    "dapo": PresetRow(loss="decoupled_clip", dynamic_sampling_enabled=True),
    "dr_grpo": PresetRow(advantage="dr_grpo", aggregation="dr_grpo"),
    "rloo": PresetRow(advantage="rloo", kl_placement="reward", kl_estimator="k1", kl_coefficient=0.01),
    "reinforce_plus_plus": PresetRow(
        advantage="reinforce_plus_plus", kl_placement="reward", kl_estimator="k1", kl_coefficient=0.01
    ),
    "reinforce_plus_plus_baseline": PresetRow(
        advantage="reinforce_plus_plus_baseline", kl_placement="loss", kl_estimator="k2"
    ),
    "sft": PresetRow(),
}
"""sft runs none of these; its row only completes the resolved spec."""
