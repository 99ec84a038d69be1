"""The names of all metrics, for the driver, views, plots, Prometheus and the documentation.

A line of metrics is one step: {"step": 12, "stage": "rl", "time": 1760000000.0, "reward/mean": 0.5, ...}. `step` counts
supervised steps too. Each reward adds `reward/NAME`, and each number that a function returns `reward/NAME/NUMBER`; so
in `validation/reward/...`. Each entry of rolloutRs adds `rollout_corr/rollout_rs_ENTRY_...`. A validation of several
data sources also has `validation/SOURCE/reward` and the same below.
An environment adds `episode/NAME` for each number that it logs.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Metric:
    """unit: "" for a pure number."""

    name: str
    unit: str
    description: str


METRICS: Final[dict[str, Metric]] = {}
"""All names below, in order."""


def _metric(name: str, unit: str, description: str) -> str:
    METRICS[name] = Metric(name, unit, description)
    return name


REWARD_MEAN = _metric("reward/mean", "", "Mean reward of the step's responses")
REWARD_STD = _metric("reward/std", "", "Standard deviation of the step's rewards")
REWARD_MIN = _metric("reward/min", "", "Smallest reward of the step")
REWARD_MAX = _metric("reward/max", "", "Largest reward of the step")
VALIDATION_REWARD = _metric("validation/reward", "", "Mean reward of the validation responses")
VALIDATION_FAILED = _metric(
    "validation/failed", "episodes", "Validation episodes without a reward: their environment or a reward failed"
)
RESPONSE_LENGTH_MEAN = _metric("response/length_mean", "tokens", "Mean length of the responses")
RESPONSE_LENGTH_MAX = _metric("response/length_max", "tokens", "Length of the longest response")
RESPONSE_TRUNCATED = _metric("response/truncated", "share", "Responses cut at the length limit")
PROMPT_LENGTH_MEAN = _metric("prompt/length_mean", "tokens", "Mean length of the prompts")
ACTOR_LOSS = _metric("actor/loss", "", "Loss, the mean over the step's updates")
ACTOR_ENTROPY = _metric("actor/entropy", "nats", "Mean entropy of the policy's next-token distribution")
ACTOR_KL = _metric("actor/kl", "nats", "Mean divergence of a token from the reference model")
ACTOR_KL_COEFFICIENT = _metric("actor/kl_coefficient", "", "Weight of the KL penalty that an adaptive controller chose")
REVERSE_KL = _metric(
    "distillation/reverse_kl",
    "nats",
    "Mean of log pi - log pi_teacher over the sampled tokens, before the update; with teacher.topK, of the divergence"
    " over the teacher's likeliest tokens, in the updates",
)
ACTOR_CLIP_FRACTION = _metric("actor/clip_fraction", "share", "Tokens whose probability ratio was clipped")
ACTOR_DRIFT = _metric(
    "actor/drift", "nats", "Mean divergence of a token from the policy at the start of the step (k3), over its updates"
)
ACTOR_COVARIANCE = _metric(
    "actor/covariance", "nats", "Covariance of log-probability and advantage over tokens; if above 0, entropy falls"
)
ACTOR_GRAD_NORM = _metric("actor/grad_norm", "", "Norm of the gradient before clipping")
ACTOR_UPDATES = _metric("actor/updates", "updates", "Optimizer steps; fewer than planned after an early stop")
ACTOR_UPDATES_SKIPPED = _metric(
    "actor/updates_skipped", "updates", "Updates left out because the gradient was not finite or too large"
)
ACTOR_LEARNING_RATE = _metric("actor/learning_rate", "", "Learning rate of the step's last update")
REWARDS_CHOSEN = _metric(
    "rewards/chosen", "", "Implicit reward of the preferred responses: beta (log pi - log pi_ref), the mean"
)
REWARDS_REJECTED = _metric("rewards/rejected", "", "Implicit reward of the rejected responses")
REWARDS_MARGINS = _metric("rewards/margins", "", "Difference of the two")
REWARDS_ACCURACIES = _metric(
    "rewards/accuracies", "share", "Pairs whose preferred response has the higher implicit reward"
)
LOGPS_CHOSEN = _metric("logps/chosen", "nats", "Log-probability of the preferred responses, the mean")
LOGPS_REJECTED = _metric("logps/rejected", "nats", "Log-probability of the rejected responses")
GROUPS_PAIRS = _metric("groups/pairs", "pairs", "Pairs of a best and a worst response; equal rewards make none")
CRITIC_LOSS = _metric("critic/loss", "", "Loss of the critic, the mean over its updates")
CRITIC_EXPLAINED_VARIANCE = _metric(
    "critic/explained_variance", "share", "Variance of the returns that the critic's values explain; below 0 they harm"
)
CRITIC_CLIP_FRACTION = _metric("critic/clip_fraction", "share", "Tokens whose value was clipped in the critic's loss")
CRITIC_VALUE_MEAN = _metric("critic/value_mean", "", "Mean value of a token, before the update")
CRITIC_RETURN_MEAN = _metric("critic/return_mean", "", "Mean return of a token, which the critic learns")
CRITIC_GRAD_NORM = _metric("critic/grad_norm", "", "Norm of the critic's gradient before clipping")
CRITIC_UPDATES = _metric("critic/updates", "updates", "Optimizer steps of the critic")
CRITIC_UPDATES_SKIPPED = _metric(
    "critic/updates_skipped", "updates", "Updates of the critic left out, as those of the policy"
)
CRITIC_LEARNING_RATE = _metric("critic/learning_rate", "", "Learning rate of the critic")
ROLLOUT_LOG_PROB_DIFF_MEAN = _metric(
    "rollout/log_prob_diff_mean",
    "nats",
    "Mean absolute difference of the engine's and the trainer's log-probabilities, if both had the same weights",
)
ROLLOUT_LOG_PROB_DIFF_MAX = _metric("rollout/log_prob_diff_max", "nats", "Largest such difference of the step")
ROLLOUT_EFFECTIVE_SAMPLE_SIZE = _metric(
    "rollout/effective_sample_size", "share", "Effective sample size under the weights trainer / engine"
)
ROLLOUT_CACHED = _metric(
    "rollout/prefix_cache_hits",
    "share",
    "Tokens of the engines' prompts that their prefix cache had: samples of a prompt share it, later turns continue it",
)
_CORRECTION = (
    ("kl", "nats", "Mean divergence of a token, engine from trainer (k1)"),
    ("k3_kl", "nats", "The same, estimated as k3"),
    ("training_ppl", "", "Perplexity of the responses under the trainer, the mean over responses"),
    ("training_log_ppl", "nats", "Its logarithm, the mean over responses"),
    ("rollout_ppl", "", "Perplexity of the responses under the engine"),
    ("rollout_log_ppl", "nats", "Its logarithm, the mean over responses"),
    ("log_ppl_diff", "nats", "Log-perplexity of the trainer minus the engine's, the mean over responses"),
    ("log_ppl_diff_max", "nats", "The largest of a response"),
    ("log_ppl_diff_min", "nats", "The smallest of a response"),
    ("log_ppl_abs_diff", "nats", "The mean of its size"),
    ("ppl_ratio", "", "Perplexity of the trainer over the engine's, the mean over responses"),
    (
        "chi2_token",
        "",
        "Chi squared of trainer and engine: mean of r^2 minus 1, with r = p_trainer / p_engine of tokens",
    ),
    ("chi2_seq", "", "The same with the product of r over a response"),
    ("rollout_is_mean", "", "Importance weights of tokens: mean"),
    ("rollout_is_std", "", "Importance weights of tokens: standard deviation"),
    ("rollout_is_max", "", "Largest weight; with rolloutIs sequence before truncation"),
    ("rollout_is_min", "", "Smallest weight; with rolloutIs sequence before truncation"),
    ("rollout_is_eff_sample_size", "share", "Effective sample size under the weights"),
    ("rollout_is_ratio_fraction_high", "share", "Ratios above the bound: of tokens, or of responses"),
    ("rollout_is_ratio_fraction_low", "share", "Ratios below the lower bound, or below 1 / bound"),
    ("rollout_is_oob_ratio", "share", "Tokens whose weight IcePop's bounds made 0"),
    ("rollout_is_batch_norm_factor", "", "What weights were divided by"),
    ("rollout_is_seq_mean", "", "Mean weight of a response: mean over responses"),
    ("rollout_is_seq_std", "", "Mean weight of a response: standard deviation"),
    ("rollout_is_seq_max", "", "Mean weight of a response: the largest"),
    ("rollout_is_seq_min", "", "Mean weight of a response: the smallest"),
    ("rollout_is_seq_max_deviation", "", "Mean weight of a response: the largest distance from 1"),
    ("rollout_is_seq_fraction_high", "share", "Responses whose mean ratio is above the bound"),
    ("rollout_is_seq_fraction_low", "share", "Responses whose mean ratio is below the lower bound, or 1 / bound"),
    ("rollout_rs_masked_fraction", "share", "Tokens that a rejection took out of the loss"),
    ("rollout_rs_seq_masked_fraction", "share", "Responses with such a token"),
)
for _name, _unit, _description in _CORRECTION:
    _metric(f"rollout_corr/{_name}", _unit, _description)
SYNC_PROBE_MEAN = _metric("sync/probe_mean", "nats", "Mean difference of log-probabilities in the weight sync's probe")
SYNC_PROBE_MOVED = _metric(
    "sync/probe_moved", "nats", "Mean difference of log-probabilities that the adapter makes, in the probe's tokens"
)
SYNC_PROBE_MAX = _metric("sync/probe_max", "nats", "Largest difference of log-probabilities in the weight sync's probe")
SYNC_BYTES = _metric("sync/bytes", "bytes", "Weights sent to the engines")
GROUPS_ABORTED = _metric("groups/aborted", "groups", "Groups that were aborted because enough others were finished")
GROUPS_UNINFORMATIVE = _metric(
    "groups/uninformative",
    "groups",
    "Groups that teach nothing: all that the advantage compares, such as rewards, is equal",
)
GROUPS_OUT_OF_BOUNDS = _metric(
    "groups/out_of_bounds", "groups", "Groups whose accuracy is outside of dynamicSampling's bounds"
)
GROUPS_TRIED_AGAIN = _metric(
    "groups/tried_again", "groups", "Groups below minAccuracy that the next step samples again"
)
GROUPS_BASELINE = _metric("groups/baseline_reward", "", "Mean reward of the greedy answers that are remax's baselines")
GROUPS_DROPPED = _metric("groups/dropped", "groups", "Groups left out because a reward failed")
EPISODES_FAILED = _metric(
    "episode/failed", "episodes", "Episodes left out because their environment failed twice, or by onOverflow: drop"
)
EPISODE_TURNS = _metric("episode/turns", "turns", "Mean number of the policy's turns in an episode")
EPISODE_SPLITS = _metric(
    "episode/splits", "trajectories", "Mean number of times that an episode's history was rewritten, so it was split"
)
RECOVERY_JOURNALED_GROUPS = _metric(
    "recovery/journaled_groups", "groups", "Groups taken from the rollout journal after a failure"
)
RECOVERY_REPLAYED_UPDATES = _metric(
    "recovery/replayed_updates", "updates", "1 if a step was repeated after a failure from journaled groups alone"
)
TIME_START = _metric("time/start", "seconds", "Start of a stage: engines and optimizer")
TIME_ROLLOUT = _metric("time/rollout", "seconds", "Generation of responses")
TIME_REWARDS = _metric("time/rewards", "seconds", "Rewards")
TIME_ADVANTAGE = _metric("time/advantage", "seconds", "Reference log-probabilities and advantages")
TIME_UPDATE = _metric("time/update", "seconds", "Optimizer updates")
TIME_SYNC = _metric("time/sync", "seconds", "Weight sync and its probe")
TIME_VALIDATION = _metric("time/validation", "seconds", "Validation")
TIME_CHECKPOINT = _metric("time/checkpoint", "seconds", "Checkpoint, as far as training waited for it")
TIME_STEP = _metric("time/step", "seconds", "The whole step, all of the above included")
ACTOR_MFU = _metric(
    "actor/mfu", "share", "Model FLOPs utilization of an update: 6 a parameter and token over the GPUs' bfloat16 peak"
)
MEMORY_UPDATE = _metric("memory/update", "bytes", "Largest GPU memory of a rank's tensors in an update")
IDLE_ENGINES = _metric(
    "idle/engines",
    "share",
    "Time of the step in which an engine has no request and gets no weights, as while all episodes wait for their"
    " environments; the mean over engines",
)
IDLE_RANKS = _metric("idle/ranks", "share", "Time of the step in which ranks neither compute nor send weights")
TOKENS_PER_SECOND = _metric(
    "throughput/tokens_per_second", "tokens/s", "Prompt and response tokens of the step over its time"
)
POLICY_VERSION = _metric("policy_version", "", "Version of the weights that the engines hold")
EPOCH = _metric("epoch", "", "Passes over the training data so far")

PHASE_TIMES: Final = (
    TIME_ROLLOUT, TIME_REWARDS, TIME_ADVANTAGE, TIME_UPDATE, TIME_SYNC, TIME_VALIDATION, TIME_CHECKPOINT,
    TIME_START,
)  # fmt: skip
"""The parts of time/step."""

RANK_TIMES: Final = (TIME_ADVANTAGE, TIME_UPDATE, TIME_SYNC)
"""The parts in which ranks work."""

OCCASIONAL_TIMES: Final = (TIME_VALIDATION, TIME_CHECKPOINT)
"""The parts that only some steps have."""


def short(name: str) -> str:
    """The last part: "rollout" of "time/rollout"."""
    return name.rsplit("/", 1)[-1]
