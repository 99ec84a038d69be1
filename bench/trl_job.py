"""A job in TRL's terms: the same hyper-parameters, rows and rewards for its GRPOTrainer.

TRL, which imports vLLM, and datasets are imported when they are needed.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rljob_api import ResolvedSpec
from rljob_api.resolve import ResolvedAlgorithm
from rljob_trainer.compute.dtypes import compute_dtype
from rljob_trainer.data.generated import generated_rows
from rljob_trainer.rewards.protocol import Call

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

Reward = Callable[[str, Any, Any], float]
"""Of a response, its ground truth and its extra_info."""

_KL = ("loss", "k3")
"""Where TRL takes the penalty, and how it estimates it."""

_LOSS_TYPES = {"sequence_mean": "grpo", "token_mean": "dapo", "dr_grpo": "dr_grpo"}

_AGGREGATIONS = {
    "clip": tuple(_LOSS_TYPES),
    "gspo": ("sequence_mean",),
    "cispo": ("token_mean",),
    "sapo": ("sequence_mean",),
}
"""How TRL aggregates the tokens of each loss that it has too."""

_SCALES: Mapping[str, Literal["group", "none"]] = {"grpo": "group", "dr_grpo": "none"}
"""By what TRL divides rewards less their group's mean, for each advantage that it has too."""


def grpo_trainer(spec: ResolvedSpec, model: Path, callback: "TrainerCallback") -> "GRPOTrainer":
    """A trainer for the job that starts from folder `model`: float32 weights, products in the type that ours has."""
    from trl import GRPOTrainer

    return GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        _reward_functions(spec),
        args=_grpo_config(spec, model.with_suffix(".trl")),
        train_dataset=rows(spec.data.train),
        processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
        callbacks=[callback],
    )


def _grpo_config(spec: ResolvedSpec, folder: Path) -> "GRPOConfig":
    """The job's settings in TRL's names. TRL's step is one update, so a step of the job is `updates` of them.

    Raises ValueError for an advantage or a loss that TRL has not, or several epochs a step.
    """
    from trl import GRPOConfig

    if not _comparable(spec):
        raise ValueError("this comparison is of advantages and losses that TRL has too, in one epoch a step")
    algorithm, actor, rollout = spec.algorithm, spec.actor, spec.rollout
    gpu = spec.cluster.gpus_per_node > 0
    return GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=actor.mini_batch_size * rollout.samples_per_prompt,
        steps_per_generation=updates(spec),
        num_generations=rollout.samples_per_prompt,
        max_completion_length=spec.data.max_response_tokens,
        max_steps=spec.training.steps * updates(spec) if spec.training.steps else -1,
        learning_rate=actor.learning_rate,
        lr_scheduler_type="constant_with_warmup" if actor.lr_schedule == "constant" else actor.lr_schedule,
        warmup_steps=actor.lr_warmup_steps * updates(spec),
        weight_decay=actor.weight_decay,
        adam_beta1=actor.beta1,
        adam_beta2=actor.beta2,
        max_grad_norm=actor.grad_clip,
        beta=algorithm.kl.coefficient if algorithm.kl.placement == "loss" else 0.0,
        use_bias_correction_kl=False,  # it would multiply the penalty by the importance ratio, and its gradient with it
        **_loss(algorithm),
        entropy_coef=algorithm.entropy_coefficient,
        scale_rewards=_SCALES[algorithm.advantage],
        reward_weights=[function.weight for function in spec.rewards.functions],
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=max(0, rollout.top_k),  # 0 is all of them, for us -1 is
        shuffle_dataset=spec.data.shuffle,
        seed=spec.training.seed,
        data_seed=spec.data.seed,
        gradient_checkpointing=actor.recompute != "none",
        bf16=gpu and compute_dtype(spec, "cuda") == "bfloat16",
        use_cpu=not gpu,
        optim="adamw_torch_fused",
        save_strategy="no",
        report_to=[],
        logging_steps=1,
        disable_tqdm=True,
    )


def updates(spec: ResolvedSpec) -> int:
    """Of a step."""
    return spec.data.prompts_per_step // spec.actor.mini_batch_size


def _loss(algorithm: ResolvedAlgorithm) -> dict[str, Any]:
    match algorithm.loss:
        case "gspo":
            ranges = {"epsilon": algorithm.clip_ratio_low, "epsilon_high": algorithm.clip_ratio_high}
            return {"loss_type": "grpo", "importance_sampling_level": "sequence", **ranges}
        case "cispo":
            return {"loss_type": "cispo", "epsilon_high": 1 + algorithm.clip_ratio_high}  # TRL names the bound itself
        case "sapo":
            taus = {"sapo_temperature_pos": algorithm.tau_pos, "sapo_temperature_neg": algorithm.tau_neg}
            return {"loss_type": "sapo", **taus}
        case _:
            return {"loss_type": _LOSS_TYPES[algorithm.aggregation], "epsilon": algorithm.clip_ratio}


def _comparable(spec: ResolvedSpec) -> bool:
    algorithm, actor = spec.algorithm, spec.actor
    even = spec.data.prompts_per_step % actor.mini_batch_size == 0 and actor.epochs == 1
    same = algorithm.advantage in _SCALES and algorithm.aggregation in _AGGREGATIONS.get(algorithm.loss, ())
    penalty = not spec.needs_reference or (algorithm.kl.placement, algorithm.kl.estimator) == _KL
    return even and same and penalty and not algorithm.dynamic_sampling.enabled


def rows(sources: Sequence[str]) -> "Dataset":
    """Columns prompt (messages), truth and info, of generated tasks."""
    from datasets import Dataset

    made = [row for source in sources for row in generated_rows(source, "spec.data")]
    return Dataset.from_list(
        [
            {"prompt": row["prompt"], "truth": row["reward_model"]["ground_truth"], "info": row["extra_info"]}
            for row in made
        ]
    )


def rewards(spec: ResolvedSpec) -> list[Reward]:
    """The job's built-in rewards, without their weights."""

    def build(builtin: str, arguments: Any) -> Reward:
        reward = importlib.import_module(f"rljob_trainer.rewards.builtin.{builtin}").Reward(**arguments)
        return lambda text, truth, info: float(reward(Call("", text, truth, info)))

    return [build(str(each.builtin), each.arguments) for each in spec.rewards.functions]


def _reward_functions(spec: ResolvedSpec) -> list[Callable[..., list[float]]]:
    """The same with the signature that GRPOTrainer calls."""

    def score_with(reward: Reward) -> Callable[..., list[float]]:
        def score(completions: list[Any], truth: list[Any], info: list[Any], **_: Any) -> list[float]:
            made = zip(completions, truth, info, strict=True)
            return [reward(each[0]["content"], one, more) for each, one, more in made]

        return score

    return [score_with(reward) for reward in rewards(spec)]
