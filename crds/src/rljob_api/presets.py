"""The named algorithms, one row each: what `algorithm.preset` stands for until a field says otherwise.

Sources: grpo, Shao et al. 2024 (arXiv 2402.03300); dapo, Yu et al. 2025 (arXiv 2503.14476); dr_grpo, Liu et al. 2025
(arXiv 2503.20783); rloo, Ahmadian et al. 2024 (arXiv 2402.14740); reinforce_plus_plus and its baseline form, Hu et al.
2025 (arXiv 2501.03262).
"""

from dataclasses import dataclass, replace

from rljob_api.v1alpha1.algorithm import Advantage, Aggregation, KlEstimator, Loss, Preset


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
    kl_placement: str = "none"
    kl_estimator: KlEstimator = "k3"
    kl_coefficient: float = 0.001
    kl_controller: str = "fixed"
    kl_target: float = 0.1
    kl_horizon: int = 10_000
    entropy_coefficient: float = 0.0
    dynamic_sampling: bool = False
    dynamic_sampling_max_rounds: int = 4


_GRPO = PresetRow(aggregation="sequence_mean", kl_placement="loss")

PRESETS: dict[Preset, PresetRow] = {
    "grpo": _GRPO,
    "dapo": PresetRow(loss="decoupled_clip", dynamic_sampling=True),
    "dr_grpo": PresetRow(advantage="dr_grpo", aggregation="dr_grpo"),
    "rloo": PresetRow(advantage="rloo", kl_placement="reward", kl_estimator="k1", kl_coefficient=0.01),
    "reinforce_plus_plus": PresetRow(
        advantage="reinforce_plus_plus", kl_placement="reward", kl_estimator="k1", kl_coefficient=0.01
    ),
    "reinforce_plus_plus_baseline": PresetRow(
        advantage="reinforce_plus_plus_baseline", kl_placement="loss", kl_estimator="k2", kl_coefficient=0.001
    ),
    "sft": replace(_GRPO, kl_placement="none"),
}
