"""Suggestions for unknown names."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cache

from pydantic.alias_generators import to_camel

from rljob_api.schema import UNJUDGED, Schema, structural_schema
from rljob_api.v1alpha1 import RLJobSpec

VERL_NAMES = {
    "train_files": "spec.data.train",
    "val_files": "spec.data.validation",
    "train_batch_size": "spec.data.promptsPerStep",
    "max_prompt_length": "spec.data.maxPromptTokens",
    "max_response_length": "spec.data.maxResponseTokens",
    "filter_overlong_prompts": "spec.data.overlongPrompts",
    "adv_estimator": "spec.algorithm.advantage",
    "loss_agg_mode": "spec.algorithm.aggregation",
    "entropy_coeff": "spec.algorithm.entropyCoefficient",
    "kl_loss_coef": "spec.algorithm.kl.coefficient",
    "kl_coef": "spec.algorithm.kl.coefficient",
    "kl_loss_type": "spec.algorithm.kl.estimator",
    "kl_ctrl": "spec.algorithm.kl",
    "filter_groups": "spec.algorithm.dynamicSampling",
    "max_num_gen_batches": "spec.algorithm.dynamicSampling.maxRounds",
    "n": "spec.rollout.samplesPerPrompt",
    "tensor_model_parallel_size": "spec.rollout.tensorParallelSize",
    "lr": "spec.actor.learningRate",
    "lr_scheduler_type": "spec.actor.lrSchedule",
    "ppo_mini_batch_size": "spec.actor.miniBatchSize",
    "ppo_epochs": "spec.actor.epochs",
    "ppo_max_token_len_per_gpu": "spec.actor.tokensPerMicroBatch",
    "param_offload": "spec.actor.fsdp.offload",
    "fsdp_size": "spec.actor.fsdp.replicas",
    "optimizer_offload": "spec.actor.fsdp.offload",
    "enable_gradient_checkpointing": "spec.actor.recompute",
    "use_torch_compile": "spec.actor.compile",
    "custom_reward_function": "spec.rewards.functions",
    "total_training_steps": "spec.training.steps",
    "total_epochs": "spec.training.epochs",
    "test_freq": "spec.training.validateEvery",
    "val_before_train": "spec.training.validateBeforeTraining",
    "logger": "spec.training.loggers",
    "project_name": "spec.training.project",
    "save_freq": "spec.checkpoint.everySteps",
    "resume_mode": "spec.checkpoint.resume",
    "nnodes": "spec.cluster.nodes",
    "n_gpus_per_node": "spec.cluster.gpusPerNode",
}
"""Names in verl's configuration that differ from RLJob's."""

_BOTH_TRAINED = {"lr", "lr_scheduler_type", "ppo_mini_batch_size", "ppo_epochs"}
"""Those that verl has under actor and under critic."""

FORMER_NAMES = {"gradientCheckpointing": "Write recompute: layer instead of true, and recompute: none instead of false"}
"""Fields of earlier versions, and what replaces them."""

_ELSEWHERE_AT_MOST = 3


def closest(word: str, options: Sequence[str], cutoff: float = 0.6) -> str | None:
    """The option that `word` probably means, ignoring case."""
    lower = {option.lower(): option for option in options}
    found = get_close_matches(str(word).lower(), lower, n=1, cutoff=cutoff)
    return lower[found[0]] if found else None


def sibling_meant(name: str, siblings: Sequence[str]) -> str | None:
    """The sibling field that `name` probably means; None if it probably belongs to another block."""
    camel = to_camel(name)
    if camel in siblings:
        return camel
    return (
        None if name in FORMER_NAMES or name.lower() in VERL_NAMES or camel in _places() else closest(camel, siblings)
    )


def suggest_field(name: str, siblings: Sequence[str]) -> str:
    """The remedy for an unknown `name`: a sibling, verl's name, a field of another block, or all siblings."""
    camel = to_camel(name)
    if name in {"true", "false"}:
        return "YAML reads the keys y, n, yes, no, on and off as booleans: put the key in quotes"
    if name in FORMER_NAMES:
        return FORMER_NAMES[name]
    if meant := sibling_meant(name, siblings):
        return f"Did you mean {meant}?"
    if name.lower() in VERL_NAMES:
        meant, own = VERL_NAMES[name.lower()], VERL_NAMES[name.lower()].rpartition(".")[2]
        return f"Did you mean {own if name.lower() in _BOTH_TRAINED and own in siblings else meant}?"
    if far := closest(camel, list(_places()), cutoff=0.8):
        return f"Did you mean {' or '.join(_places()[far][:_ELSEWHERE_AT_MOST])}?"
    return f"The fields here are {', '.join(siblings)}" if siblings else "Remove it"


@cache
def _places() -> dict[str, list[str]]:
    """Paths of all fields of the spec, by their names."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in _paths(structural_schema(RLJobSpec), "spec"):
        places[path.rsplit(".", 1)[1]].append(path)
    return dict(places)


def _paths(schema: Schema, prefix: str) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        if field == UNJUDGED:
            continue
        path = f"{prefix}.{name}"
        yield path
        yield from _paths(field, path)
        yield from _paths(field.get("items", {}), f"{path}[]")
