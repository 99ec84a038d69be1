"""The named algorithms, one row each: what `algorithm.preset` stands for until a field says otherwise."""

from dataclasses import dataclass

from rljob_api.v1alpha1.terms import Advantage, Aggregation, KlController, KlEstimator, KlPlacement, Loss, Preset


@dataclass(frozen=True)
class LossSettings:
    """Values of the fields that a loss reads, until the spec sets them; names and units as in `v1alpha1.algorithm`."""

    clip_ratio: float = 0.2
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.28
    clip_ratio_c: float = 3.0
    tau_pos: float = 1.0
    tau_neg: float = 1.05
    clip_cov_ratio: float = 0.0002
    clip_cov_lb: float = 1.0
    clip_cov_ub: float = 5.0
    kl_cov_ratio: float = 0.002
    ppo_kl_coef: float = 1.0
    dpo_beta: float = 0.1
    sppo_eta: float = 1000.0


LOSS_SETTINGS: dict[Loss, LossSettings] = {
    "clip": LossSettings(),
    "dual_clip": LossSettings(),
    "decoupled_clip": LossSettings(),
    "gspo": LossSettings(clip_ratio_low=3e-4, clip_ratio_high=4e-4),
    "geo_mean": LossSettings(clip_ratio_low=0.4, clip_ratio_high=0.4),
    "cispo": LossSettings(clip_ratio_low=1.0, clip_ratio_high=4.0),
    "sapo": LossSettings(),
    "clip_cov": LossSettings(clip_ratio_low=1.0, clip_ratio_high=1.0),
    "kl_cov": LossSettings(),
    "gpg": LossSettings(),
    "dppo_tv": LossSettings(clip_ratio_low=0.15, clip_ratio_high=0.15, clip_ratio_c=20.0),
    "dppo_kl": LossSettings(clip_ratio_low=0.05, clip_ratio_high=0.05, clip_ratio_c=20.0),
    "topr": LossSettings(),
    "custom": LossSettings(),
    "dpo": LossSettings(),
    "sppo": LossSettings(),
}
"""clip 0.2: Schulman et al. 2017, https://arxiv.org/abs/1707.06347, table 3.
dual_clip's bound of 3: Ye et al. 2020, https://arxiv.org/abs/1912.09729.
decoupled_clip: Yu et al. 2025, https://arxiv.org/abs/2503.14476, section 4.1.
gspo: Zheng et al. 2025, https://arxiv.org/abs/2507.18071, section 5.1.
geo_mean: Zhao et al. 2025, https://arxiv.org/abs/2507.20673: ratios from e^-0.4 to e^0.4.
cispo: no lower bound, as MiniMax 2025, https://arxiv.org/abs/2506.13585; weights up to 5, as Khatri et al. 2025,
    https://arxiv.org/abs/2510.13786.
sapo: Gao et al. 2025, https://arxiv.org/abs/2511.20347.
clip_cov, kl_cov: Cui et al. 2025, https://arxiv.org/abs/2505.22617, for a model of 7B; PPO's own range is wide.
dppo: Qi et al. 2026, https://arxiv.org/abs/2602.04879, and verl's examples.
dpo's beta of 0.1: Rafailov et al. 2023, https://arxiv.org/abs/2305.18290, appendix B.
sppo's eta of 1000: Wu et al. 2024, https://arxiv.org/abs/2405.00675, section 5.1; verl's example takes 1.
"""


@dataclass(frozen=True)
class PresetRow:
    """Values of the fields that a preset governs; names and units as in `v1alpha1.algorithm`.

    paper: which the values come from. use: what the preset is for.
    kl_target, kl_horizon: those of the code of Ziegler et al. 2019, which adds the divergence over a response as we do:
        https://github.com/openai/lm-human-preferences (AdaptiveKLParams). verl's 0.1 is of a token.
    """

    paper: str
    use: str
    advantage: Advantage = "grpo"
    loss: Loss = "clip"
    aggregation: Aggregation = "token_mean"
    gamma: float = 1.0
    lambda_: float = 1.0
    lambda_alpha: float = 0.0
    kl_placement: KlPlacement = "none"
    kl_estimator: KlEstimator = "k3"
    kl_coefficient: float = 0.001
    kl_controller: KlController = "fixed"
    kl_target: float = 6.0
    kl_horizon: int = 10_000
    entropy_coefficient: float = 0.0
    positive_nll_coefficient: float = 0.0
    dynamic_sampling_enabled: bool = False
    dynamic_sampling_max_rounds: int = 4
    critic_warmup_steps: int = 0


PRESETS: dict[Preset, PresetRow] = {
    "grpo": PresetRow(
        paper="Shao et al. 2024, DeepSeekMath, equations 3 and 4: https://arxiv.org/abs/2402.03300. The coefficient is"
        " verl's default; the paper's own run took 0.04",
        use="the first choice, and the one that most published runs compare with",
        aggregation="sequence_mean",
        kl_placement="loss",
    ),
    "dapo": PresetRow(
        paper="Yu et al. 2025, DAPO, sections 2.3, 3.1 to 3.3 and 4.1: https://arxiv.org/abs/2503.14476",
        use="long reasoning from verifiable rewards: groups that teach nothing are sampled again, entropy stays higher",
        loss="decoupled_clip",
        dynamic_sampling_enabled=True,
    ),
    "dr_grpo": PresetRow(
        paper="Liu et al. 2025, Understanding R1-Zero-Like Training, section 3.2: https://arxiv.org/abs/2503.20783",
        use="if GRPO makes wrong responses longer and longer",
        advantage="dr_grpo",
        aggregation="dr_grpo",
    ),
    "rloo": PresetRow(
        paper="Ahmadian et al. 2024, Back to Basics: https://arxiv.org/abs/2402.14740",
        use="rewards of a reward model, with the KL penalty as part of the reward",
        advantage="rloo",
        kl_placement="reward",
        kl_estimator="k1",
        kl_coefficient=0.01,
    ),
    "remax": PresetRow(
        paper="Li et al. 2023, ReMax: https://arxiv.org/abs/2310.10505. The coefficient is that of verl's example",
        use="one response a prompt without a critic; a greedy answer to each prompt is its baseline",
        advantage="remax",
        kl_placement="reward",
        kl_estimator="k1",
    ),
    "reinforce_plus_plus": PresetRow(
        paper="Hu et al. 2025, REINFORCE++: https://arxiv.org/abs/2501.03262",
        use="one response a prompt, or prompts whose rewards have one scale",
        advantage="reinforce_plus_plus",
        kl_placement="reward",
        kl_estimator="k1",
        kl_coefficient=0.01,
    ),
    "reinforce_plus_plus_baseline": PresetRow(
        paper="Hu et al. 2025, REINFORCE++: https://arxiv.org/abs/2501.03262",
        use="several responses a prompt, without GRPO's division by the group's deviation",
        advantage="reinforce_plus_plus_baseline",
        kl_placement="loss",
        kl_estimator="k2",
    ),
    "gspo": PresetRow(
        paper="Zheng et al. 2025, Group Sequence Policy Optimization, section 5.1: https://arxiv.org/abs/2507.18071",
        use="mixture-of-experts models, and several updates a step on long responses",
        loss="gspo",
        aggregation="sequence_mean",
    ),
    "gmpo": PresetRow(
        paper="Zhao et al. 2025, Geometric-Mean Policy Optimization: https://arxiv.org/abs/2507.20673",
        use="if single tokens make the gradient's norm jump",
        loss="geo_mean",
        aggregation="sequence_mean",
    ),
    "cispo": PresetRow(
        paper="MiniMax 2025, MiniMax-M1: https://arxiv.org/abs/2506.13585; Khatri et al. 2025, ScaleRL:"
        " https://arxiv.org/abs/2510.13786 for the bound of the weights",
        use="many updates a step, or stale samples; no token loses its gradient",
        loss="cispo",
    ),
    "sapo": PresetRow(
        paper="Gao et al. 2025, Soft Adaptive Policy Optimization: https://arxiv.org/abs/2511.20347",
        use="a soft trust region in place of clipping",
        loss="sapo",
        aggregation="sequence_mean",
    ),
    "clip_cov": PresetRow(
        paper="Cui et al. 2025, The Entropy Mechanism: https://arxiv.org/abs/2505.22617",
        use="if entropy collapses in the first hundred steps",
        loss="clip_cov",
    ),
    "kl_cov": PresetRow(
        paper="Cui et al. 2025, The Entropy Mechanism: https://arxiv.org/abs/2505.22617",
        use="as clip_cov; steadier in the paper's longer runs",
        loss="kl_cov",
    ),
    "dppo": PresetRow(
        paper="Qi et al. 2026, Rethinking the Trust Region in LLM Reinforcement Learning:"
        " https://arxiv.org/abs/2602.04879; aggregation of verl's example",
        use="a trust region by probability instead of ratio; rare tokens keep their gradient",
        advantage="dr_grpo",
        loss="dppo_tv",
        aggregation="dr_grpo",
    ),
    "topr": PresetRow(
        paper="Le Roux et al. 2025, Tapered Off-Policy REINFORCE: https://arxiv.org/abs/2503.14286",
        use="many updates on the same, mostly wrong responses",
        advantage="dr_grpo",
        loss="topr",
        aggregation="dr_grpo",
    ),
    "gpg": PresetRow(
        paper="Chu et al. 2025, Group Policy Gradient: https://arxiv.org/abs/2504.02546",
        use="the plainest policy gradient, with one update a step",
        advantage="gpg",
        loss="gpg",
    ),
    "opo": PresetRow(
        paper="Hao et al. 2025, On-Policy RL with Optimal Reward Baseline: https://arxiv.org/abs/2505.23585",
        use="exactly on-policy training, one update a step, with responses of very different lengths",
        advantage="opo",
    ),
    "maxrl": PresetRow(
        paper="Tajwar et al. 2026, Maximum Likelihood Reinforcement Learning: https://arxiv.org/abs/2602.02710",
        use="many samples a prompt, with hard prompts that are rarely solved",
        advantage="maxrl",
    ),
    "ppo": PresetRow(
        paper="Schulman et al. 2017, PPO: https://arxiv.org/abs/1707.06347; Hu et al. 2025, Open-Reasoner-Zero:"
        " https://arxiv.org/abs/2503.24290 for gamma and lambda of 1 and no KL penalty",
        use="a critic that tells tokens of one response apart; one response a prompt is enough",
        advantage="gae",
    ),
    "vapo": PresetRow(
        paper="Yue et al. 2025, VAPO, sections 4.1 to 4.3 and 5.1: https://arxiv.org/abs/2504.05118. Its critic learns"
        " alone for 50 steps (critic.warmupSteps); the paper's learns at 2e-6, twice the policy's rate, which"
        " critic.learningRate sets",
        use="long reasoning with a critic: its returns are not discounted, those of the policy look the less far the"
        " shorter a response is, and right responses are imitated",
        advantage="gae",
        loss="decoupled_clip",
        lambda_alpha=0.05,
        positive_nll_coefficient=0.1,
        critic_warmup_steps=50,
    ),
    "online_dpo": PresetRow(
        paper="Guo et al. 2024, Direct Language Model Alignment from Online AI Feedback:"
        " https://arxiv.org/abs/2402.04792; beta as in [DPO](https://arxiv.org/abs/2305.18290)",
        use="rewards of which only the order within a prompt counts; the best response against the worst",
        advantage="best_worst",
        loss="dpo",
        aggregation="sequence_mean",
    ),
    "sppo": PresetRow(
        paper="Wu et al. 2024, Self-Play Preference Optimization, section 5.1: https://arxiv.org/abs/2405.00675",
        use="as online_dpo, but learns from every sample of a prompt; with several updates a step",
        advantage="win_rate",
        loss="sppo",
        aggregation="sequence_mean",
    ),
    "spin": PresetRow(
        paper="Chen et al. 2024, Self-Play Fine-Tuning, equation 4.7: https://arxiv.org/abs/2401.01335",
        use="supervised rows, after supervised fine-tuning on them: each row's response against one of the policy's",
        advantage="best_worst",
        loss="dpo",
        aggregation="sequence_mean",
    ),
    "distillation": PresetRow(
        paper="Lu et al. 2025, On-Policy Distillation: https://thinkingmachines.ai/blog/on-policy-distillation/;"
        " Agarwal et al. 2023, GKD: https://arxiv.org/abs/2306.13649 for the reverse KL on the student's own samples",
        use="a small policy that learns from a larger model (algorithm.teacher); no reward is needed, and one response"
        " a prompt is enough",
        advantage="distillation",
    ),
    "sft": PresetRow(
        paper="Ouyang et al. 2022, InstructGPT: https://arxiv.org/abs/2203.02155",
        use="supervised fine-tuning on rows; it generates and scores nothing",
    ),
    "dpo": PresetRow(
        paper="Rafailov et al. 2023, Direct Preference Optimization, appendix B: https://arxiv.org/abs/2305.18290",
        use="rows with a chosen and a rejected response; it generates and scores nothing",
        advantage="best_worst",
        loss="dpo",
        aggregation="sequence_mean",
    ),
}
"""One row each. A field that a row leaves out has PresetRow's default, and what its loss reads is in LOSS_SETTINGS."""
