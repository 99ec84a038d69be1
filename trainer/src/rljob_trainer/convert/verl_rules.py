"""verl's settings that become a field only together. Each function reads some settings and writes some fields."""

from collections.abc import Callable
from typing import Any, Final

from rljob_trainer.convert.conversion import Conversion, kept_checkpoints
from rljob_trainer.convert.verl_distillation import distillation
from rljob_trainer.convert.verl_objective import ACTOR, AGGREGATIONS, OBJECTIVE, ROLLOUT, correction

MODEL: Final = "actor_rollout_ref.model"

MATH_SOURCES: Final = ["lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500"]
DAPO_SOURCES: Final = ["math_dapo", "math", "math_dapo_reasoning", "aime*"]
"""Values of data_source that verl's default_compute_score scores by \\boxed{}, and by the last line "Answer: ..."."""

DAPO_ANSWER: Final = r"(?i)Answer(?=[\s\S]{0,294}\Z)\s*:\s*(?:[^\n]*=)?[ $]*(?:\\boxed\{)?([^{}\n$]++(?!\{)|[^\n$]+)"
r"""The answer as verl's math_dapo.py finds it, in the last 300 characters, without "x =", "$" and "\boxed{}"."""

_TOKENS: Final = 16384
"""Tokens of a micro-batch: the default of verl and of RLJob."""

LOGGERS: Final = ("console", "tensorboard", "wandb", "mlflow", "trackio")


def batches(c: Conversion) -> None:
    """Minibatches in prompts, as verl counts them, and micro-batches in tokens."""
    prompts = c.number("data.train_batch_size", 1024)
    mini = c.number(f"{ACTOR}.ppo_mini_batch_size", 256)
    if mini < prompts:
        c.put("actor.miniBatchSize", mini)
    longest = c.number("data.max_prompt_length", 512) + c.number("data.max_response_length", 512)
    dynamic = c.get(f"{ACTOR}.use_dynamic_bsz", default=False)
    tokens = c.number(f"{ACTOR}.ppo_max_token_len_per_gpu", _TOKENS) if dynamic else _TOKENS
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
    _schedule(c, f"{ACTOR}.optim", "actor")
    betas = c.get(f"{ACTOR}.optim.betas", [0.9, 0.999])
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
        c.put(f"{model}.lrWarmupSteps", int(ratio * total), f"{ratio} of {total} steps")
    elif ratio > 0:
        why = f"set {model}.lrWarmupSteps; the number of steps depends on the data"
        c.leave(f"{optim}.lr_warmup_steps_ratio", why)


def memory(c: Conversion) -> None:
    if not c.get(f"{MODEL}.enable_gradient_checkpointing", default=True):
        c.put("actor.recompute", "none")
    elif c.get(f"{MODEL}.enable_activation_offload", default=False):
        c.put("actor.recompute", "offload")
    parameters = c.get(f"{ACTOR}.fsdp_config.param_offload", default=False)
    optimizer = c.get(f"{ACTOR}.fsdp_config.optimizer_offload", default=False)
    offload = {(True, True): "all", (True, False): "parameters", (False, True): "optimizer"}.get(
        (parameters, optimizer)
    )
    if offload:
        note = "verl brings all of it to the GPU while it trains; here it stays in host memory, and layers are copied"
        c.put("actor.fsdp.offload", offload, note)


def engine(c: Conversion) -> None:
    name = c.get(f"{ROLLOUT}.name", "vllm")
    if name in {"vllm", "hf"}:
        c.put("rollout.engine", name)
    else:
        c.leave(f"{ROLLOUT}.name", f"{name} is no engine of RLJob, which takes vllm")
    arguments = c.below(f"{ROLLOUT}.engine_kwargs.vllm") | {
        name: value
        for name in ("max_num_batched_tokens", "enable_chunked_prefill", "enable_prefix_caching")
        if (value := c.get(f"{ROLLOUT}.{name}")) is not None
    }
    if arguments and name == "vllm":
        c.put("rollout.engineArguments", arguments)
    if (quantization := c.get(f"{ROLLOUT}.quantization")) == "fp8":
        c.put(
            "rollout.quantization", quantization, "verl has a scale for each block of 128 x 128 weights; here each row"
        )
    elif quantization is not None:
        c.leave(f"{ROLLOUT}.quantization", "engines take fp8 alone")


def turns(c: Conversion) -> None:
    """verl's tools and interactions are classes of its own, which the reader writes as an environment."""
    prefix = f"{ROLLOUT}.multi_turn"
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
    kwargs = f"{ROLLOUT}.val_kwargs"
    sampled = c.get(f"{kwargs}.do_sample", default=False)
    temperature, top_p = c.number(f"{kwargs}.temperature", 0), c.number(f"{kwargs}.top_p", 1.0)
    samples = c.number(f"{kwargs}.n", 1)
    if sampled and temperature:
        c.put("rollout.validation.samplesPerPrompt", samples)
        c.put("rollout.validation.temperature", temperature)
        c.put("rollout.validation.topP", top_p)
    elif temperature or samples > 1:
        why = "verl's do_sample is false" if temperature else "verl's temperature is 0"
        c.put("rollout.validation.temperature", 0.0, f"{why}: all {samples} samples are equal" if samples > 1 else why)
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
    "verl chooses by data_source too; other sources need a function of their own. For aime and math_dapo verl gives -1"
    " for a wrong answer, which gets 0 here: halve the weight of length_penalty, if there is one. verl also ignores"
    " units, thousands separators and text around the answer, with which it is wrong here"
)


def _functions(c: Conversion) -> list[dict[str, Any]]:
    path, name = c.get("custom_reward_function.path"), c.get("custom_reward_function.name", "compute_score")
    arguments = c.below("custom_reward_function.reward_kwargs")
    if path is None:
        return [
            {"builtin": "gsm8k", "dataSources": ["openai/gsm8k"]},
            {"builtin": "boxed_math", "dataSources": MATH_SOURCES},
            {
                "builtin": "regex",
                "name": "dapo",
                "arguments": {"pattern": DAPO_ANSWER, "compare": True},
                "dataSources": DAPO_SOURCES,
            },
        ]
    return [{"path": path, "function": name} | ({"arguments": arguments} if arguments else {})]


def run(c: Conversion) -> None:
    """Loggers, resume, what is kept and the job's name."""
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
    kept_checkpoints(c, "trainer.max_actor_ckpt_to_keep")
    c.name = str(c.get("trainer.experiment_name", "gsm8k"))


def critic(c: Conversion) -> None:
    warmup = c.number("trainer.critic_warmup", 0)
    if c.fields.get("algorithm.advantage") != "gae":
        unused = [key for key in c.settings if key.startswith("critic.")]
        c.seen.update(unused)
        c.unneeded.update({"only adv_estimator gae trains a critic": unused} if unused else {})
        return
    c.put("critic.model", c.get("critic.model.path"))
    if rank := c.number("critic.model.lora_rank", 0):
        modules = c.get("critic.model.target_modules", "all-linear")
        c.put("critic.lora.rank", rank)
        if c.number("critic.model.lora_alpha", 16) != rank:
            c.leave("critic.model.lora_alpha", "the critic's adapter counts once: scale critic.learningRate")
        if modules != "all-linear":
            c.put("critic.lora.targetModules", modules if isinstance(modules, list) else [modules])
    c.put("critic.learningRate", c.number("critic.optim.lr", 1e-5))
    c.put("critic.weightDecay", c.number("critic.optim.weight_decay", 0.01))
    _schedule(c, "critic.optim", "critic")
    c.put("critic.warmupSteps", max(0, warmup - 1), f"verl's policy learns from step {warmup} on" if warmup else "")
    c.put("critic.clipRange", c.number("critic.cliprange_value", 0.5))
    c.put("critic.gradClip", c.number("critic.grad_clip", 1.0))
    c.put("critic.epochs", c.number("critic.ppo_epochs"))
    if (own := c.get("critic.loss_agg_mode")) and AGGREGATIONS.get(own) != c.fields.get("algorithm.aggregation"):
        c.leave("critic.loss_agg_mode", "the critic's loss is averaged as the policy's is: algorithm.aggregation")
    mini = c.number("critic.ppo_mini_batch_size")
    if mini and mini < c.number("data.train_batch_size", 1024):
        c.put("critic.miniBatchSize", mini)


def adapter(c: Conversion) -> None:
    rank, path = c.number(f"{MODEL}.lora_rank", 0), c.get(f"{MODEL}.lora_adapter_path")
    alpha, modules = c.number(f"{MODEL}.lora_alpha", 16), c.get(f"{MODEL}.target_modules", "all-linear")
    if path:
        c.put("model.lora.path", path, "the adapter says rank, alpha and modules")
    elif rank:
        c.put("model.lora.rank", rank)
        c.put("model.lora.alpha", alpha)
        if modules != "all-linear":
            c.put("model.lora.targetModules", modules if isinstance(modules, list) else [modules])


RULES: Final[tuple[Callable[[Conversion], None], ...]] = (
    *OBJECTIVE, distillation, batches, prompts, schedule, memory, engine, turns, validation, rewards, run, critic,
    adapter, correction,
)  # fmt: skip
"""In the order of their fields."""
