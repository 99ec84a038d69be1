"""TRL gets the job's own hyper-parameters, or the job is refused."""

import pytest

from bench.learning.arms import REVERSE_TEXT
from bench.trl_job import _grpo_config
from rljob_api import resolve
from rljob_api.validation import load_rljob

GRPO = (
    "data.promptsPerStep=6", "data.maxResponseTokens=11", "data.shuffle=false", "data.seed=5",
    "rollout.samplesPerPrompt=4", "rollout.temperature=0.7", "rollout.topP=0.9", "rollout.topK=40",
    "actor.learningRate=3e-4", "actor.lrSchedule=cosine", "actor.lrWarmupSteps=7", "actor.weightDecay=0.03",
    "actor.beta1=0.8", "actor.beta2=0.95", "actor.gradClip=0.5", "actor.recompute=layer",
    "algorithm.kl.coefficient=0.04", "algorithm.clipRatio=0.15", "algorithm.entropyCoefficient=0.02",
    "training.steps=9", "training.seed=3",
)  # fmt: skip
"""Of reverse-text, whose rewards weigh a half each; no value is a default of either side."""

THEIRS = {
    "per_device_train_batch_size": 24, "gradient_accumulation_steps": 1, "num_iterations": 1, "max_steps": 9,
    "max_completion_length": 11, "shuffle_dataset": False, "data_seed": 5, "seed": 3,
    "num_generations": 4, "temperature": 0.7, "top_p": 0.9, "top_k": 40,
    "learning_rate": 3e-4, "lr_scheduler_type": "cosine", "warmup_steps": 7, "weight_decay": 0.03,
    "adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-8, "max_grad_norm": 0.5, "gradient_checkpointing": True,
    "beta": 0.04, "use_bias_correction_kl": False,
    "epsilon": 0.15, "entropy_coef": 0.02, "loss_type": "grpo", "scale_rewards": "group",
    "reward_weights": [0.5, 0.5], "bf16": False, "fp16": False, "use_cpu": True,
}  # fmt: skip


def config(folder, *overrides):
    return _grpo_config(resolve(load_rljob(REVERSE_TEXT.example, list(overrides)).spec), folder)


def test_trl_gets_every_hyper_parameter_that_it_has(tmp_path):
    found = config(tmp_path, *GRPO)
    assert {name: getattr(found, name) for name in THEIRS} == THEIRS


@pytest.mark.parametrize(
    ("override", "name", "value"),
    [
        ("actor.lrSchedule=constant", "lr_scheduler_type", "constant_with_warmup"),
        ("actor.lrSchedule=linear", "lr_scheduler_type", "linear"),
        ("rollout.topK=-1", "top_k", 0),
        ("algorithm.aggregation=token_mean", "loss_type", "dapo"),
        ("algorithm.aggregation=dr_grpo", "loss_type", "dr_grpo"),
        ("algorithm.advantage=dr_grpo", "scale_rewards", "none"),
        ("algorithm.kl.placement=none", "beta", 0.0),
        ("algorithm.preset=gspo", "importance_sampling_level", "sequence"),
        ("algorithm.preset=gspo", "epsilon_high", 4e-4),
        ("algorithm.preset=cispo", "epsilon_high", 5.0),
        ("algorithm.loss=sapo", "sapo_temperature_neg", 1.05),
        ("actor.miniBatchSize=32", "per_device_train_batch_size", 512),
        ("actor.miniBatchSize=32", "steps_per_generation", 4),
        ("actor.miniBatchSize=32", "max_steps", 1200),
        ("actor.miniBatchSize=32", "warmup_steps", 40),
    ],
)
def test_what_trl_calls_otherwise_is_translated(tmp_path, override, name, value):
    assert getattr(config(tmp_path, override), name) == value


def test_on_a_gpu_both_multiply_in_the_same_type(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: True)
    for dtype in ("auto", "float32"):
        found = config(tmp_path, "cluster.gpusPerNode=1", f"model.dtype={dtype}")
        assert (found.use_cpu, found.bf16) == (False, dtype == "auto")


@pytest.mark.parametrize(
    "override",
    [
        "algorithm.advantage=rloo", "algorithm.loss=dual_clip", "algorithm.kl.placement=reward",
        "algorithm.kl.estimator=k1", "algorithm.dynamicSampling.enabled=true",
        "actor.epochs=2",
    ],
)  # fmt: skip
def test_what_trl_does_otherwise_is_refused(tmp_path, override):
    with pytest.raises(ValueError, match="of advantages and losses that TRL has too"):
        config(tmp_path, override)
