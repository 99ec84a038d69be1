"""TRL's settings that become a field only together. Each function reads some settings and writes some fields."""

from collections.abc import Callable
from math import ceil
from typing import Any, Final

from rljob_trainer.convert.conversion import Conversion, kept_checkpoints

LOSSES: Final = {
    "grpo": ("clip", "sequence_mean"),
    "bnpo": ("clip", "token_mean"),
    "dapo": ("clip", "token_mean"),
    "dr_grpo": ("clip", "dr_grpo"),
    "cispo": ("cispo", "token_mean"),
    "sapo": ("sapo", "sequence_mean"),
}
"""TRL's loss_type: RLJob's loss and aggregation."""

ADVANTAGES: Final = {"group": "grpo", "none": "dr_grpo", "True": "grpo", "False": "dr_grpo"}
"""TRL's scale_rewards."""

_DELTA: Final = "only dual_clip bounds bad tokens, with equal ranges"

NEVER: Final = ("no", False)
"""TRL's save_strategy and eval_strategy, as text and as YAML reads it."""

LOGGERS: Final = ("tensorboard", "wandb", "mlflow", "trackio")


def loss(c: Conversion) -> None:
    kind, level = c.get("loss_type", "dapo"), c.get("importance_sampling_level", "token")
    low, delta = c.number("epsilon", 0.2), c.number("delta")
    high = c.number("epsilon_high", low)
    if kind not in LOSSES:
        c.require("algorithm.loss", f"TRL's loss {kind} is not one of RLJob's")
        return
    name, aggregation = LOSSES[kind]
    c.put("algorithm.aggregation", aggregation)
    if level == "sequence" and name == "clip":
        name = "gspo"
    elif level != "token":
        c.leave("importance_sampling_level", f"loss {name} has a ratio for each token")
    if name == "clip":
        _clipped(c, low, high, delta)
        return
    c.put("algorithm.loss", name)
    if name == "sapo":
        c.put("algorithm.tauPos", c.number("sapo_temperature_pos", 1.0))
        c.put("algorithm.tauNeg", c.number("sapo_temperature_neg", 1.05))
    elif name == "cispo":
        c.put("algorithm.clipRatioLow", 1.0)
        c.put("algorithm.clipRatioHigh", max(0.0, high - 1), "TRL's epsilon_high is the bound of the weight itself")
    else:
        c.put("algorithm.clipRatioLow", low)
        c.put("algorithm.clipRatioHigh", high)
        c.leave("delta", _DELTA)


def _clipped(c: Conversion, low: float, high: float, delta: float | None) -> None:
    for name in ("sapo_temperature_pos", "sapo_temperature_neg"):
        c.get(name)
    if low != high:
        c.put("algorithm.loss", "decoupled_clip")
        c.put("algorithm.clipRatioLow", low)
        c.put("algorithm.clipRatioHigh", high)
        if delta is not None:
            c.leave("delta", _DELTA)
        return
    c.put("algorithm.loss", "clip" if delta is None else "dual_clip")
    c.put("algorithm.clipRatio", low)
    c.put("algorithm.clipRatioC", delta)


def advantage(c: Conversion) -> None:
    c.put("algorithm.dynamicSampling.enabled", value=False)
    scaled = c.get("scale_rewards", "group")
    if str(scaled) in ADVANTAGES:
        c.put("algorithm.advantage", ADVANTAGES[str(scaled)])
    else:
        c.require("algorithm.advantage", f"TRL's scale_rewards {scaled} is not one of RLJob's")


def kl(c: Conversion) -> None:
    beta = c.number("beta", 0.0)
    corrected = c.get("use_bias_correction_kl", default=True)
    if beta <= 0:
        c.put("algorithm.kl.placement", "none")
        return
    c.put("algorithm.kl.placement", "loss")
    c.put("algorithm.kl.coefficient", beta)
    note = "TRL's k3 is weighed by the ratio to the old policy, and then has the gradient of k2" if corrected else ""
    c.put("algorithm.kl.estimator", "k2" if corrected else "k3", note)
    if c.get("sync_ref_model", default=False):
        c.put("algorithm.kl.refreshEvery", c.number("ref_model_sync_steps", 512), "in steps, not optimizer steps")


def _completions(c: Conversion) -> tuple[int, int]:
    """Completions of an optimizer step, and of what is generated at once."""
    accumulated = c.number("gradient_accumulation_steps", 1)
    update = c.number("per_device_train_batch_size", 8) * c.number("num_processes", 1) * accumulated
    generated = c.number("steps_per_generation", accumulated)
    return update, c.number("generation_batch_size", update // accumulated * generated)


def _updates(c: Conversion) -> int:
    """Optimizer steps, which TRL counts, of one of RLJob's steps."""
    update, batch = _completions(c)
    return int(max(1, batch // update) * c.number("num_iterations", 1))


def batches(c: Conversion) -> None:
    """TRL counts completions of a device; RLJob counts prompts of a step."""
    ranks, samples = c.number("num_processes", 1), c.number("num_generations", 8)
    (update, batch), updates = _completions(c), _updates(c)
    note = f"{batch} completions of {samples} each, on {ranks} processes: pass num_processes=N for more"
    c.put("data.promptsPerStep", max(1, batch // samples), note)
    if update < batch:
        c.put("actor.miniBatchSize", max(1, update // samples))
    if c.number("max_steps", -1) > 0:
        steps = ceil(c.number("max_steps") / updates)
        c.put("training.steps", steps, "" if updates == 1 else f"TRL counts {updates} optimizer steps for each")
        c.get("num_train_epochs")
    else:
        c.put("training.epochs", ceil(c.number("num_train_epochs", 3)))
    c.put("cluster.gpusPerNode", ranks)
    longest = 512 + c.number("max_completion_length", 512)
    c.put("actor.tokensPerMicroBatch", max(16384, longest))
    _each(c, updates)


def _each(c: Conversion, updates: int) -> None:
    """Intervals, which TRL counts in optimizer steps."""
    saves(c, updates)
    _validation(c, updates)


def _validation(c: Conversion, updates: int) -> None:
    strategy, every = c.get("eval_strategy", "no"), c.number("eval_steps") or c.number("logging_steps", 10)
    samples = c.number("num_generations_eval") or c.number("num_generations", 8)
    if strategy in NEVER:
        return
    c.require("data.validation", "TRL's script chooses the validation rows")
    c.put("rollout.validation.samplesPerPrompt", samples)
    c.put("rollout.validation.temperature", c.number("temperature", 1.0), "TRL validates as it samples")
    c.put("rollout.validation.topP", c.number("top_p", 1.0))
    if strategy == "steps" and every >= 1:
        c.put("training.validateEvery", ceil(every / updates))
    else:  # epochs, or a share of all steps
        c.leave("eval_strategy" if strategy != "steps" else "eval_steps", "set training.validateEvery")


def saves(c: Conversion, updates: int) -> None:
    strategy = c.get("save_strategy", "steps")
    if strategy == "steps":
        c.put("checkpoint.everySteps", ceil(c.number("save_steps", 500) / updates))
    elif strategy in NEVER:
        c.put("checkpoint.everySteps", 0, "a checkpoint is saved after the last step")
    else:
        c.leave("save_strategy", "set checkpoint.everySteps")
    kept_checkpoints(c, "save_total_limit")


def schedule(c: Conversion) -> None:
    kind = c.get("lr_scheduler_type", "linear")
    if kind in {"linear", "cosine", "constant", "constant_with_warmup"}:
        c.put("actor.lrSchedule", kind.removesuffix("_with_warmup"))
    else:
        c.leave("lr_scheduler_type", "choose a schedule in actor.lrSchedule")
    warmup = c.number("warmup_steps", 0)
    ratio = c.number("warmup_ratio", 0) or (warmup if warmup < 1 else 0)
    if warmup >= 1:
        c.put("actor.lrWarmupSteps", ceil(warmup / _updates(c)))
    elif ratio and c.number("max_steps", -1) > 0:
        c.put("actor.lrWarmupSteps", ceil(ratio * c.number("max_steps") / _updates(c)))
    elif ratio:
        c.leave("warmup_ratio", "set actor.lrWarmupSteps; the number of steps depends on the data")


def engine(c: Conversion) -> None:
    c.put("rollout.engine", "vllm" if c.get("use_vllm", default=False) else "hf")
    if c.get("use_vllm", default=False) and c.get("vllm_importance_sampling_correction", default=True):
        c.left["vllm_importance_sampling_correction"] = "TRL's default: choose a preset in algorithm.rolloutCorrection"
    if not c.get("use_vllm", default=False):
        inert = [key for key in c.settings if key.startswith("vllm_")]
        c.seen.update(inert)
        c.unneeded.update({"use_vllm is false": inert} if inert else {})
    adapter(c)


def adapter(c: Conversion) -> None:
    """The adapter, and what the backward pass computes again."""
    if c.get("use_peft", default=False):
        c.put("model.lora.rank", c.number("lora_r", 16))
        c.put("model.lora.alpha", c.number("lora_alpha", 32))
        c.put("model.lora.dropout", c.number("lora_dropout", 0.05))
        c.put("model.lora.targetModules", c.get("lora_target_modules"))
    if not c.get("gradient_checkpointing", default=True):
        c.put("actor.recompute", "none")


def rewards(c: Conversion) -> None:
    names, weights = c.get("reward_funcs"), c.get("reward_weights")
    if c.get("reward_model_name_or_path"):
        model = {"name": "reward-model", "path": c.get("reward_model_name_or_path"), "kind": "classifier"}
        c.put("rewards.models", [model])
    if names is None:
        c.require("rewards.functions", "TRL's script names its functions: set them here")
        return
    names = names if isinstance(names, list) else [names]
    weights = weights if weights is None or isinstance(weights, list) else [weights]
    if weights is not None and len(weights) != len(names):
        c.leave("reward_weights", f"it has {len(weights)} weights, and reward_funcs {len(names)} functions")
        weights = None
    c.put("rewards.functions", [_function(str(name), index, weights) for index, name in enumerate(names)], _SIGNATURE)


_SIGNATURE: Final = "TRL passes lists of completions and columns: write each function with RLJob's signature"


def _function(name: str, index: int, weights: list[float] | None) -> dict[str, Any]:
    module, _, function = name.rpartition(".")
    weight = {"weight": weights[index]} if weights else {}
    return {"module": module or "rewards", "function": function} | weight


def run(c: Conversion) -> None:
    asked = c.get("report_to", "none")
    asked = asked if isinstance(asked, list) else [asked]
    c.put("training.loggers", ["console", *(name for name in asked if name in LOGGERS)])
    if others := [name for name in asked if name not in {*LOGGERS, "none"}]:
        c.leave("report_to", f"no logger {', '.join(map(str, others))}")
    c.name = (
        str(c.get("run_name") or c.get("output_dir") or c.fields.get("algorithm.preset", "grpo"))
        .rstrip("/")
        .rpartition("/")[2]
    )


RULES: Final[tuple[Callable[[Conversion], None], ...]] = (
    loss, advantage, kl, batches, schedule, engine, rewards, run,
)  # fmt: skip
"""In the order of their fields."""
