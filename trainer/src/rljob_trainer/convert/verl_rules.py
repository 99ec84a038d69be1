"""verl's settings that become a field only together. Each function reads some settings and writes some fields."""

from collections.abc import Callable
from typing import Any, Final

from rljob_trainer.convert.conversion import Conversion

_ACTOR: Final = "actor_rollout_ref.actor"
_MODEL: Final = "actor_rollout_ref.model"
_ROLLOUT: Final = "actor_rollout_ref.rollout"

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

MATH_SOURCES: Final = ["lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500"]
DAPO_SOURCES: Final = ["math_dapo", "math", "math_dapo_reasoning", "aime*"]
"""Values of data_source that verl's default_compute_score knows."""

_TOKENS: Final = 16384
"""Tokens of a micro-batch: the default of verl and of RLJob."""

LOGGERS: Final = ("console", "tensorboard", "wandb", "mlflow", "trackio")


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
        c.put("algorithm.advantage", ADVANTAGES[estimator])
        if estimator == "reinforce_plus_plus":
            c.put("algorithm.gamma", gamma)
    else:
        c.require("algorithm.advantage", f"verl's estimator {estimator} is not one of RLJob's")


def loss(c: Conversion) -> None:
    mode = c.get(f"{_ACTOR}.policy_loss.loss_mode", "vanilla")
    both = c.number(f"{_ACTOR}.clip_ratio", 0.2)
    low, high = c.number(f"{_ACTOR}.clip_ratio_low", 0.2), c.number(f"{_ACTOR}.clip_ratio_high", 0.2)
    bound = c.number(f"{_ACTOR}.clip_ratio_c", 3.0)
    if both not in {low, high}:
        c.leave(f"{_ACTOR}.clip_ratio", "verl reads clip_ratio_low and clip_ratio_high in its place")
    if mode == "vanilla":
        _vanilla(c, low, high, bound)
    elif mode in LOSSES:
        c.put("algorithm.loss", LOSSES[mode])
        _settings_of(c, mode, low, high)
    else:
        c.require("algorithm.loss", f"verl's loss {mode} is not one of RLJob's")
    _aggregation(c, mode)


def _vanilla(c: Conversion, low: float, high: float, bound: float) -> None:
    """verl's loss is the dual clip; its two bounds may differ, and those of RLJob's dual_clip may not."""
    if low == high:
        c.put("algorithm.loss", "dual_clip", "verl's loss vanilla")
        c.put("algorithm.clipRatio", low)
        c.put("algorithm.clipRatioC", bound)
        return
    c.put("algorithm.loss", "decoupled_clip", f"verl also bounds the loss of bad tokens with a ratio above {bound}")
    c.put("algorithm.clipRatioLow", low)
    c.put("algorithm.clipRatioHigh", high)


def _settings_of(c: Conversion, mode: str, low: float, high: float) -> None:
    policy = f"{_ACTOR}.policy_loss"
    if mode in {"gspo", "geo_mean", "cispo", "clip_cov", "dppo_tv", "dppo_kl"}:
        c.put("algorithm.clipRatioLow", min(low, 1.0), "1 is no lower bound" if low > 1 else "")
        c.put("algorithm.clipRatioHigh", high)
    by_loss = {
        "sapo": {"tauPos": (f"{_ACTOR}.tau_pos", 1.0), "tauNeg": (f"{_ACTOR}.tau_neg", 1.05)},
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
        c.get(f"{_ACTOR}.policy_loss.{name}")
    c.get(f"{_ACTOR}.tau_pos")
    c.get(f"{_ACTOR}.tau_neg")
    key = f"{_ACTOR}.loss_agg_mode"
    asked = c.get(key, "token-mean")
    if mode in BY_SEQUENCE:
        c.put("algorithm.aggregation", "sequence_mean")
    elif asked in AGGREGATIONS:
        note = "verl does not divide by the number of responses" if asked == "seq-mean-token-sum-norm" else ""
        c.put("algorithm.aggregation", AGGREGATIONS[asked], note)
    else:
        c.leave(key, "choose one of token_mean, sequence_mean and dr_grpo in algorithm.aggregation")


def kl(c: Conversion) -> None:
    in_loss = c.get(f"{_ACTOR}.use_kl_loss", default=False)
    in_reward = c.get("algorithm.use_kl_in_reward", default=False)
    loss_coefficient = c.number(f"{_ACTOR}.kl_loss_coef", 0.001)
    loss_type = c.get(f"{_ACTOR}.kl_loss_type", "low_var_kl")
    penalty, coefficient = c.get("algorithm.kl_penalty", "kl"), c.number("algorithm.kl_ctrl.kl_coef", 0.001)
    controller = {name: c.get(f"algorithm.kl_ctrl.{name}") for name in ("type", "horizon", "target_kl")}
    if in_loss and loss_coefficient > 0:
        _penalty(c, "loss", loss_coefficient, f"{_ACTOR}.kl_loss_type", loss_type)
        if in_reward:
            c.leave("algorithm.use_kl_in_reward", "the penalty has one place, and is in the loss")
    elif in_reward and coefficient > 0:
        _penalty(c, "reward", coefficient, "algorithm.kl_penalty", penalty)
        if controller["type"] == "adaptive":
            c.put("algorithm.kl.controller", "adaptive")
            c.put("algorithm.kl.target", controller["target_kl"] or 0.1)
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
    straight = "verl's gradient is that of k2" if kind.endswith("+") and estimator != "k2" else ""
    c.put("algorithm.kl.estimator", estimator, straight)
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
        half = 0.5 / c.number(f"{_ROLLOUT}.n", 1)
        note = "verl's acc: of a group's responses some are right and some wrong; here rewards of 1 and 0"
        c.put("algorithm.dynamicSampling.minAccuracy", half, note)
        c.put("algorithm.dynamicSampling.maxAccuracy", 1 - half)


def batches(c: Conversion) -> None:
    """Minibatches in prompts, as verl counts them, and micro-batches in tokens."""
    prompts = c.number("data.train_batch_size", 1024)
    mini = c.number(f"{_ACTOR}.ppo_mini_batch_size", 256)
    if mini < prompts:
        c.put("actor.miniBatchSize", mini)
    longest = c.number("data.max_prompt_length", 512) + c.number("data.max_response_length", 512)
    dynamic = c.get(f"{_ACTOR}.use_dynamic_bsz", default=False)
    tokens = c.number(f"{_ACTOR}.ppo_max_token_len_per_gpu", _TOKENS) if dynamic else _TOKENS
    c.put("actor.tokensPerMicroBatch", max(tokens, longest))


def prompts(c: Conversion) -> None:
    if c.get("data.image_key") and c.get("data.video_key") is None:  # a whole configuration has both
        c.leave("data.image_key", "images are not supported")
    filtered = c.get("data.filter_overlong_prompts", default=False)
    truncation = c.get("data.truncation", "error")
    if filtered or truncation != "error":
        note = "" if filtered else f"verl cuts prompts (truncation {truncation}); here they are skipped"
        c.put("data.overlongPrompts", "filter", note)
    else:
        c.put("data.overlongPrompts", "fail")


def schedule(c: Conversion) -> None:
    _schedule(c, f"{_ACTOR}.optim", "actor")
    betas = c.get(f"{_ACTOR}.optim.betas", [0.9, 0.999])
    c.put("actor.beta1", betas[0])
    c.put("actor.beta2", betas[1])


def _schedule(c: Conversion, optim: str, model: str) -> None:
    """optim: verl's settings of an optimizer. model: actor or critic."""
    kind = c.get(f"{optim}.lr_scheduler_type", "constant")
    if kind in {"constant", "cosine", "linear"}:
        c.put(f"{model}.lrSchedule", kind)
    else:
        c.leave(f"{optim}.lr_scheduler_type", f"choose a schedule in {model}.lrSchedule")
    floor = c.number(f"{optim}.min_lr_ratio", 0.0)
    if floor and kind == "cosine":
        c.put(f"{model}.minLrRatio", floor)
    steps, ratio = c.number(f"{optim}.lr_warmup_steps", -1), c.number(f"{optim}.lr_warmup_steps_ratio", 0.0)
    total = c.number("trainer.total_training_steps", 0)
    if steps > 0:
        c.put(f"{model}.lrWarmupSteps", steps)
    elif ratio > 0 and total:
        c.put(f"{model}.lrWarmupSteps", round(ratio * total), f"{ratio} of {total} steps")
    elif ratio > 0:
        why = f"set {model}.lrWarmupSteps; the number of steps depends on the data"
        c.leave(f"{optim}.lr_warmup_steps_ratio", why)


def memory(c: Conversion) -> None:
    if not c.get(f"{_MODEL}.enable_gradient_checkpointing", default=True):
        c.put("actor.recompute", "none")
    elif c.get(f"{_MODEL}.enable_activation_offload", default=False):
        c.put("actor.recompute", "offload")
    parameters = c.get(f"{_ACTOR}.fsdp_config.param_offload", default=False)
    optimizer = c.get(f"{_ACTOR}.fsdp_config.optimizer_offload", default=False)
    offload = {(True, True): "all", (True, False): "parameters", (False, True): "optimizer"}.get(
        (parameters, optimizer)
    )
    if offload:
        note = "verl brings all of it to the GPU while it trains; here it stays in host memory, and layers are copied"
        c.put("actor.fsdp.offload", offload, note)


def engine(c: Conversion) -> None:
    name = c.get(f"{_ROLLOUT}.name", "vllm")
    if name in {"vllm", "hf"}:
        c.put("rollout.engine", name)
    else:
        c.leave(f"{_ROLLOUT}.name", f"{name} is no engine of RLJob, which takes vllm")
    arguments = c.below(f"{_ROLLOUT}.engine_kwargs.vllm") | {
        name: value
        for name in ("max_num_batched_tokens", "enable_chunked_prefill", "enable_prefix_caching")
        if (value := c.get(f"{_ROLLOUT}.{name}")) is not None
    }
    if arguments and name == "vllm":
        c.put("rollout.engineArguments", arguments)


def turns(c: Conversion) -> None:
    """verl's tools and interactions are classes of its own, which the reader writes as an environment."""
    prefix = f"{_ROLLOUT}.multi_turn"
    enabled, most = c.get(f"{prefix}.enable", default=False), c.number(f"{prefix}.max_assistant_turns")
    if not enabled:
        return
    written = "write verl's tools or interaction as Python functions, and name them in environment.tools"
    c.put("environment.path", "environment.py", written)
    c.require("environment.path", written)
    c.put("environment.maxTurns", most)
    longest = c.number("data.max_prompt_length", 512) + c.number("data.max_response_length", 512)
    c.put("environment.maxEpisodeTokens", longest, "verl's max_response_length is of all turns")
    for name in ("tool_config_path", "interaction_config_path", "function_tool_path"):
        c.leave(f"{prefix}.{name}", written)


def validation(c: Conversion) -> None:
    kwargs = f"{_ROLLOUT}.val_kwargs"
    sampled = c.get(f"{kwargs}.do_sample", default=False)
    temperature, top_p = c.number(f"{kwargs}.temperature", 0), c.number(f"{kwargs}.top_p", 1.0)
    c.put("rollout.validation.samplesPerPrompt", c.number(f"{kwargs}.n", 1))
    if sampled:
        c.put("rollout.validation.temperature", temperature)
        c.put("rollout.validation.topP", top_p)
    elif temperature:
        c.put("rollout.validation.temperature", 0.0, "verl's do_sample is false")
    every = c.number("trainer.test_freq", -1)
    c.put("training.validateEvery", max(0, every) if c.fields.get("data.validation") else 0)


def rewards(c: Conversion) -> None:
    functions = _functions(c)
    manager = c.get("reward_model.reward_manager", "naive")
    if manager not in {"naive", "dapo"}:
        c.leave("reward_model.reward_manager", "write a function of rewards.functions")
    overlong = c.below("reward_model.reward_kwargs.overlong_buffer_cfg") | c.below("reward_model.overlong_buffer")
    longest = c.number("reward_model.reward_kwargs.max_resp_len", c.number("data.max_response_length", 512))
    if overlong.get("enable"):
        buffer = {"max_tokens": longest, "buffer_tokens": overlong.get("len", 0)}
        weight = overlong.get("penalty_factor", 1.0)
        functions.append({"builtin": "length_penalty", "arguments": buffer, "weight": weight})
    if c.get("reward_model.enable", default=False):
        model = {"name": "reward-model", "path": c.get("reward_model.model.path"), "kind": "classifier"}
        if (gpus := c.number("reward_model.rollout.tensor_model_parallel_size", 1)) > 1:
            model["gpusPerReplica"] = gpus
        c.put("rewards.models", [model], "its servers have GPUs of their own, which vLLM uses")
        if not c.get("custom_reward_function.path"):
            return
    else:
        inert = [key for key in c.settings if key.startswith(("reward_model.model.", "reward_model.rollout."))]
        c.seen.update(inert)
        c.unneeded.update({"no reward model scores": inert} if inert else {})
    c.put("rewards.functions", functions, "" if c.get("custom_reward_function.path") else _BY_SOURCE)


_BY_SOURCE = (
    "verl chooses by data_source too; other sources need a function of their own. verl gives aime and math_dapo -1 for"
    " a wrong answer, and boxed_math gives 0"
)


def _functions(c: Conversion) -> list[dict[str, Any]]:
    path, name = c.get("custom_reward_function.path"), c.get("custom_reward_function.name", "compute_score")
    arguments = c.below("custom_reward_function.reward_kwargs")
    if path is None:
        return [
            {"builtin": "gsm8k", "dataSources": ["openai/gsm8k"]},
            {"builtin": "boxed_math", "dataSources": [*MATH_SOURCES, *DAPO_SOURCES]},
        ]
    return [{"path": path, "function": name} | ({"arguments": arguments} if arguments else {})]


def run(c: Conversion) -> None:
    """Loggers, resume and the job's name."""
    asked = c.get("trainer.logger", ["console", "wandb"])
    asked = asked if isinstance(asked, list) else [asked]
    c.put("training.loggers", [name for name in asked if name in LOGGERS] or None)
    if others := [name for name in asked if name not in LOGGERS]:
        c.leave("trainer.logger", f"no logger {', '.join(map(str, others))}")
    mode = c.get("trainer.resume_mode", "auto")
    if mode == "disable":
        c.put("checkpoint.resume", "never")
    elif mode != "auto":
        c.leave("trainer.resume_mode", "verl's checkpoints are not read: export a model, and set model.path")
    c.name = str(c.get("trainer.experiment_name", "gsm8k"))


def critic(c: Conversion) -> None:
    warmup = c.number("trainer.critic_warmup", 0)
    if c.get("algorithm.adv_estimator", "gae") != "gae":
        unused = [key for key in c.settings if key.startswith("critic.")]
        c.seen.update(unused)
        c.unneeded.update({"only adv_estimator gae trains a critic": unused} if unused else {})
        return
    c.put("critic.model", c.get("critic.model.path"))
    c.put("critic.learningRate", c.number("critic.optim.lr", 1e-5))
    c.put("critic.weightDecay", c.number("critic.optim.weight_decay", 0.01))
    _schedule(c, "critic.optim", "critic")
    c.put("critic.warmupSteps", warmup)
    c.put("critic.clipRange", c.number("critic.cliprange_value", 0.5))
    c.put("critic.gradClip", c.number("critic.grad_clip", 1.0))
    c.put("critic.epochs", c.number("critic.ppo_epochs"))
    mini = c.number("critic.ppo_mini_batch_size")
    if mini and mini < c.number("data.train_batch_size", 1024):
        c.put("critic.miniBatchSize", mini)


def adapter(c: Conversion) -> None:
    rank, path = c.number(f"{_MODEL}.lora_rank", 0), c.get(f"{_MODEL}.lora_adapter_path")
    alpha, modules = c.number(f"{_MODEL}.lora_alpha", 16), c.get(f"{_MODEL}.target_modules", "all-linear")
    if path:
        c.put("model.lora.path", path, "the adapter says rank, alpha and modules")
    elif rank:
        c.put("model.lora.rank", rank)
        c.put("model.lora.alpha", alpha)
        if modules != "all-linear":
            c.put("model.lora.targetModules", modules if isinstance(modules, list) else [modules])


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


RULES: Final[tuple[Callable[[Conversion], None], ...]] = (
    advantage, loss, kl, groups, batches, prompts, schedule, memory, engine, turns, validation, rewards, run, critic,
    adapter, correction,
)  # fmt: skip
"""In the order of their fields."""
