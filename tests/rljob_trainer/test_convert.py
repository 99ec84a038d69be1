"""`rljob convert`: settings of verl and TRL as RLJobs."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api.resolve import resolve
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.validation import load_rljob, validate
from rljob_trainer.convert.conversion import Conversion
from rljob_trainer.convert.convert import conversion_of
from rljob_trainer.convert.document import object_name, rendered
from rljob_trainer.convert.trl_dpo import TRL_DPO
from rljob_trainer.convert.trl_table import TRL
from rljob_trainer.convert.verl_table import VERL
from rljob_trainer.rewards.load import load
from rljob_trainer.rewards.protocol import Call, FunctionSetup, covers
from tests.rljob_trainer.cli_support import rljob
from tests.rljob_trainer.convert_support import GRPO, spec


def launches() -> dict[str, list[str]]:
    text = (Path(__file__).parent / "verl_launches.txt").read_text()
    parts = re.split(r"^\[(.+)\]$", text, flags=re.MULTILINE)[1:]
    return {name: settings.split() for name, settings in zip(parts[::2], parts[1::2], strict=True)}


LAUNCHES = launches()


LEFT: Mapping[str, tuple[str, ...]] = {
    "ppo_trainer/run_qwen2-7b_rm": (
        "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio",
        "critic.optim.lr_warmup_steps_ratio",
    ),
    "grpo_trainer/run_qwen2_5_vl-7b": ("data.image_key",),
    "grpo_trainer/run_qwen2-7b_math_megatron": tuple(
        f"actor_rollout_ref.{role}.megatron.{kind}_model_parallel_size"
        for role in ("actor", "ref")
        for kind in ("pipeline", "tensor")
    ),
    "gmpo_trainer/test_dapo_7b_math": (
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size",
        "actor_rollout_ref.model.override_config.max_position_embeddings",
    ),
    "gspo_trainer/test_gspo_3b_math": ("trainer.experiment_name", "trainer.nnodes"),
    "sglang_multiturn/run_qwen2.5-3b_gsm8k_multiturn": (
        "actor_rollout_ref.rollout.name",
        "trainer.experiment_name",
    ),
    "sglang_multiturn/run_qwen3_4b_dapo_multiturn": (
        "actor_rollout_ref.rollout.multi_turn.tool_config_path",
        "actor_rollout_ref.rollout.name",
        "data.custom_cls.name",
        "data.custom_cls.path",
        "spec.environment.path",
    ),
    "tuning/0.5b/qwen2-0.5b_grpo-lora_1_h100_fsdp_vllm": (
        "trainer.experiment_name",
        "trainer.project_name",
    ),
}


"""What each launch has that RLJob has not; the others convert as a whole."""


ONE_SAMPLE = {
    "rollout_correction/run_with_rollout_corr",
    "tuning/0.5b/qwen2-0.5b_grpo-lora_1_h100_fsdp_vllm",
}


"""Launches with one sample a prompt, which an advantage of groups refuses."""


REFUSED = {"gspo_trainer/test_gspo_3b_math": {"spec.cluster.nodes"}}


"""Fields with a variable that the launch does not set."""


@pytest.mark.parametrize("name", LAUNCHES)
def test_launches_of_verl_become_valid_jobs_and_the_rest_is_listed(name: str) -> None:
    first, *others = LAUNCHES[name]
    conversion = conversion_of(first, others)
    assert sorted(conversion.left) == sorted(LEFT.get(name, ()))
    fields = {problem.field for problem in validate(rendered(conversion, name), name).problems}
    assert fields == REFUSED.get(name, {"spec.rollout.samplesPerPrompt"} if name in ONE_SAMPLE else set())


def test_twenty_launches_are_covered() -> None:
    assert len(LAUNCHES) == 20
    assert set(LEFT) <= set(LAUNCHES)


def test_an_algorithm_becomes_the_preset_that_resolves_to_it(tmp_path: Path) -> None:
    first, *others = LAUNCHES["cispo_trainer/run_cispo_qwen2_5_0_5b_gsm8k"]
    file = tmp_path / "job.yaml"
    file.write_text(rendered(conversion_of(first, others), "test"))
    algorithm = resolve(load_rljob(file).spec).algorithm
    assert (algorithm.preset, algorithm.loss, algorithm.aggregation) == ("cispo", "cispo", "token_mean")
    assert (algorithm.clip_ratio_low, algorithm.clip_ratio_high) == (1.0, 0.2)  # verl's 10 is no lower bound
    assert (algorithm.kl.placement, algorithm.kl.coefficient, algorithm.kl.clip) == ("loss", 0.001, 10.0)
    assert not algorithm.dynamic_sampling.enabled


def test_the_defaults_of_verl_are_kept_where_those_of_rljob_differ() -> None:
    found = spec(conversion_of(GRPO[0], GRPO[1:]))
    assert found["data"] | {"train": None} == {
        "train": None,
        "maxResponseTokens": 512,
        "promptsPerStep": 1024,
        "overlongPrompts": "fail",
    }
    assert found["rollout"] == {"samplesPerPrompt": 4, "tensorParallelSize": 2}
    assert found["algorithm"] == {
        "preset": "grpo",
        "loss": "dual_clip",
        "aggregation": "token_mean",
        "kl": {"placement": "none"},
    }
    assert found["training"]["epochs"] == 30


@pytest.mark.parametrize(
    ("setting", "field", "value"),
    [
        ("actor_rollout_ref.actor.clip_ratio_high=0.28", "loss", "decoupled_clip"),
        ("algorithm.norm_adv_by_std_in_grpo=False", "preset", "dr_grpo"),
        ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean", "aggregation", None),
        ("algorithm.filter_groups.enable=True", "preset", "dapo"),
    ],
)
def test_a_setting_changes_its_field(setting: str, field: str, value: object) -> None:
    assert spec(conversion_of(GRPO[0], [*GRPO[1:], setting]))["algorithm"].get(field) == value


MEANING: Mapping[str, tuple[tuple[str, ...], str, object, str]] = {
    "a target of tokens": (
        ("algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.target_kl=0.1"),
        "algorithm.kl.target", 0.1, "of a whole response",
    ),
    "a gradient of k2": (
        ("actor_rollout_ref.actor.use_kl_loss=True", "actor_rollout_ref.actor.kl_loss_type=low_var_kl+"),
        "algorithm.kl.estimator", "k2", "gradient of k2",
    ),
    "a share of rewards": (
        ("algorithm.adv_estimator=gpg",), "algorithm.advantage", "gpg", "a reward other than 0",
    ),
    "an older sum": (
        ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm",), "algorithm.aggregation", "dr_grpo",
        "before 0.8",
    ),
    "a share of steps": (
        ("actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1", "trainer.total_training_steps=15"),
        "actor.lrWarmupSteps", 1, "of 15 steps",  # as verl, which rounds down
    ),
    "a bound of weights": (
        ("actor_rollout_ref.actor.policy_loss.loss_mode=dppo_tv", "actor_rollout_ref.actor.clip_ratio_c=10"),
        "algorithm.clipRatioC", 10, "",
    ),
    "the bound of verl's configuration": (
        ("actor_rollout_ref.actor.policy_loss.loss_mode=dppo_kl",), "algorithm.clipRatioC", 3.0, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MEANING)
def test_a_value_that_means_something_else_has_a_comment(name: str) -> None:
    settings, field, value, note = MEANING[name]
    conversion = conversion_of(GRPO[0], [*GRPO[1:], *settings])
    assert (conversion.fields[field], conversion.left) == (value, {})
    assert note in conversion.notes.get(field, "")
    assert conversion.notes.get(field, "") in rendered(conversion, "test")


TEACHER = ("distillation.enabled=True", "distillation.teacher_models.teacher_model.model_path=org/big",
           "distillation.teacher_models.teacher_model.inference.max_model_len=900")  # fmt: skip


ALONE = (*TEACHER, "distillation.distillation_loss.use_task_rewards=False", "algorithm.adv_estimator=gae")


GRADIENT = ("distillation.distillation_loss.use_policy_gradient=True", "distillation.distillation_loss.loss_mode=k1")


TOP_K = ("distillation.distillation_loss.loss_mode=forward_kl_topk", "distillation.distillation_loss.topk=64")


BOTH = (*TEACHER, "distillation.distillation_loss.distillation_loss_coef=0.1", *GRADIENT)


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        (("algorithm.adv_estimator=grpo_passk", "algorithm.norm_adv_by_std_in_grpo=False"),
         "algorithm.norm_adv_by_std_in_grpo"),
        (("algorithm.adv_estimator=gae", "critic.loss_agg_mode=seq-mean-token-mean"), "critic.loss_agg_mode"),
        (("algorithm.adv_estimator=gae", "critic.loss_agg_mode=token-mean",
          "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"), "critic.loss_agg_mode"),
        (("algorithm.adv_estimator=gae", "critic.loss_agg_mode=seq-mean-token-mean",
          "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"), None),
        (("algorithm.rollout_correction.bypass_mode=True", "actor_rollout_ref.actor.policy_loss.loss_mode=gspo"),
         "actor_rollout_ref.actor.policy_loss.loss_mode"),
        ((*BOTH, "distillation.distillation_loss.clip_ratio_high=0.3"),
         "distillation.distillation_loss.clip_ratio_high"),
        ((*TEACHER, "distillation.distillation_loss.loss_max_clamp=10"),
         "distillation.distillation_loss.loss_max_clamp"),
        ((*TEACHER, "distillation.distillation_loss.log_prob_min_clamp=-10"), None),
        ((*TEACHER, "+distillation.teacher_models.other.model_path=b"), None),
    ],
)  # fmt: skip
def test_what_rljob_would_do_otherwise_is_listed(settings: tuple[str, ...], left: str | None) -> None:
    assert conversion_of(GRPO[0], [*GRPO[1:], *settings]).left.keys() == ({left} if left else set())


@pytest.mark.parametrize(
    ("settings", "field", "value", "note"),
    [
        ((*ALONE, *GRADIENT), "preset", "distillation", ""),
        ((*ALONE, *GRADIENT), "teacher", {"path": "org/big", "coefficient": 1.0}, ""),
        ((*ALONE, *GRADIENT, "algorithm.use_kl_in_reward=True"), "kl", None, ""),
        (ALONE, "preset", "distillation", "verl has k3 as a loss"),
        ((*ALONE, *TOP_K), "teacher", {"path": "org/big", "topK": 64, "coefficient": 1.0}, "the reverse KL"),
        (BOTH, "preset", "grpo", "added to the advantages"),
        (BOTH, "teacher", {"path": "org/big", "coefficient": 0.1}, ""),
        (("distillation.nnodes=2",), "teacher", None, ""),
    ],
)
def test_a_teacher_of_verl_is_one_of_the_ranks(settings, field, value, note) -> None:
    conversion = conversion_of(GRPO[0], [*GRPO[1:], *settings])
    text = rendered(conversion, "test")
    assert not conversion.left
    assert note in text
    assert not validate(text, "test").problems
    assert spec(conversion)["algorithm"].get(field) == value


@pytest.mark.parametrize("estimator", ["gae", "grpo_passk"])
def test_no_preset_adds_what_the_source_does_not_have(estimator: str, tmp_path: Path) -> None:
    """vapo is the nearest preset to a PPO with another upper bound, and imitates right responses."""
    file = tmp_path / "job.yaml"
    more = [f"algorithm.adv_estimator={estimator}", "actor_rollout_ref.actor.clip_ratio_high=0.28"]
    file.write_text(rendered(conversion_of(GRPO[0], [*GRPO[1:], *more]), "test"))
    algorithm = resolve(load_rljob(file).spec).algorithm
    assert (algorithm.advantage, algorithm.loss, algorithm.clip_ratio_high) == (estimator, "decoupled_clip", 0.28)
    assert (algorithm.positive_nll_coefficient, algorithm.lambda_alpha) == (0, 0)


def test_quantised_rollouts_stay_so() -> None:
    found = conversion_of(GRPO[0], [*GRPO[1:], "actor_rollout_ref.rollout.quantization=fp8"])
    assert spec(found)["rollout"]["quantization"] == "fp8"


def test_several_turns_become_an_environment_that_the_reader_writes() -> None:
    first, *others = LAUNCHES["sglang_multiturn/run_qwen3_4b_dapo_multiturn"]
    found = spec(conversion_of(first, others))
    assert found["environment"] == {"path": "environment.py", "maxTurns": 16, "maxEpisodeTokens": 2048 + 16384}


def test_groups_by_accuracy_are_bounds_that_one_response_crosses() -> None:
    more = ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=acc"]
    conversion = conversion_of(GRPO[0], [*GRPO[1:], *more])
    assert not conversion.left
    found = spec(conversion)["algorithm"]["dynamicSampling"]
    assert (found["minAccuracy"], found["maxAccuracy"]) == (0.125, 0.875)  # of four responses


@pytest.mark.parametrize(
    ("setting", "left"),
    [
        ("reward_model.made_up=3", True),
        ("reward_model.num_workers=3", False),
        ("reward_model.model.input_tokenizer=a/b", False),  # no reward model is enabled
        ("actor_rollout_ref.actor.optim.override_optimizer_config.momentum_dtype=bfloat16", True),
        ("actor_rollout_ref.actor.optim.total_training_steps=-1", False),
        ("actor_rollout_ref.actor.optim.made_up=1", True),
        ("critic.model.lora_rank=8", False),  # without a critic
    ],
)
def test_only_settings_that_are_known_to_change_nothing_are_unneeded(setting: str, left: bool) -> None:
    assert bool(conversion_of(GRPO[0], [*GRPO[1:], setting]).left) == left


@pytest.mark.parametrize(
    "setting",
    [
        "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum",
        "actor_rollout_ref.actor.policy_loss.loss_mode=new",
        "trainer.logger=[console,swanlab]",
        "data.prompt_key=question",
        "data.made_up=1",
        "trainer.resume_mode=resume_path",
        "actor_rollout_ref.actor.optim.lr=$LR",
        "actor_rollout_ref.rollout.quantization=torchao",
    ],
)
def test_what_has_no_field_is_left_and_says_so_in_the_exit_code(setting: str) -> None:
    done = rljob("convert", *GRPO, setting)
    assert done.returncode == 3
    assert "not converted: " in done.stderr
    assert "\n# Not converted: " in done.stdout


def test_a_launch_without_rest_ends_with_0_and_writes_the_file(tmp_path: Path) -> None:
    done = rljob("convert", *GRPO, "-o", tmp_path / "job.yaml")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert load_rljob(tmp_path / "job.yaml").spec.rollout.samples_per_prompt == 4


def test_a_note_stands_in_the_file_also_if_the_preset_sets_the_field() -> None:
    clip = "actor_rollout_ref.actor.clip_ratio_high=0.28"
    dapo = conversion_of(GRPO[0], [*GRPO[1:], clip, "algorithm.filter_groups.enable=True"])
    text = rendered(dapo, "test")
    assert "preset: dapo" in text
    assert "# verl also bounds the loss of bad tokens with a ratio above 3.0\n    loss: decoupled_clip" in text


def test_an_adapter_and_a_correction_of_rollouts_become_their_fields() -> None:
    first, *others = LAUNCHES["rollout_correction/run_with_rollout_corr"]
    found = spec(conversion_of(first, [*others, "actor_rollout_ref.model.lora_rank=8"]))
    assert (found["algorithm"]["preset"], found["algorithm"]["advantage"]) == ("gpg", "rloo")
    assert found["algorithm"]["rolloutCorrection"] == {
        "bypassMode": True,
        "lossType": "reinforce",
        "rolloutIs": "sequence",
        "rolloutIsThreshold": "2",
        "rolloutIsBatchNormalize": True,
    }
    assert found["model"]["lora"] == {"rank": 8, "alpha": 16}


def test_ppo_gets_the_settings_of_its_critic() -> None:
    first, *others = LAUNCHES["ppo_trainer/run_gemma"]
    more = [
        "critic.ppo_mini_batch_size=64",
        "critic.cliprange_value=0.2",
        "trainer.critic_warmup=5",
        "algorithm.lam=0.95",
    ]
    found = spec(conversion_of(first, [*others, *more]))
    assert found["algorithm"]["lambda"] == 0.95
    assert found["critic"] == {
        "model": "google/gemma-2-2b-it",
        "learningRate": 1e-5,
        "lrSchedule": "constant",
        "weightDecay": 0.01,
        "gradClip": 1.0,
        "miniBatchSize": 64,
        "clipRange": 0.2,
        "warmupSteps": 4,
    }
    assert "critic.shuffle" in conversion_of(first, [*others, "critic.shuffle=true"]).left
    adapted = conversion_of(first, [*others, "critic.model.lora_rank=8"])
    assert spec(adapted)["critic"]["lora"] == {"rank": 8}
    assert "critic.model.lora_alpha" not in adapted.left, "the source does not set it"
    assert (
        "critic.model.lora_alpha"
        in conversion_of(first, [*others, "critic.model.lora_rank=8", "critic.model.lora_alpha=16"]).left
    )
    assert "critic" not in spec(conversion_of(GRPO[0], [*GRPO[1:], "critic.optim.lr=3"]))


TRAINS = ("model_name_or_path=a/b", "reward_funcs=r.f")


@pytest.mark.parametrize(
    ("source", "checkpoint"),
    [
        ((*GRPO, "trainer.save_freq=20"), {"everySteps": 20, "keepEvery": 1}),
        ((*GRPO, "trainer.save_freq=20", "trainer.max_actor_ckpt_to_keep=null"), {"everySteps": 20, "keepEvery": 1}),
        ((*GRPO, "trainer.save_freq=20", "trainer.max_actor_ckpt_to_keep=2"), {"everySteps": 20, "keepLast": 2}),
        (GRPO, {"everySteps": 0}),
        (TRAINS, {"everySteps": 500, "keepEvery": 1}),
        ((*TRAINS, "loss_type=sigmoid"), {"everySteps": 500, "keepEvery": 1}),
        ((*TRAINS, "save_total_limit=0"), {"everySteps": 500, "keepEvery": 1}),
        ((*TRAINS, "save_total_limit=4"), {"everySteps": 500, "keepLast": 4}),
        ((*TRAINS, "save_strategy=no"), {"everySteps": 0}),
        ((*TRAINS, "save_strategy=epoch"), {"keepEvery": 1}),
    ],
)
def test_checkpoints_are_kept_as_the_source_keeps_them(source: tuple[str, ...], checkpoint: dict[str, int]) -> None:
    assert spec(conversion_of(source[0], source[1:]))["checkpoint"] == checkpoint


def test_names_of_another_version_of_verl_are_known() -> None:
    found = conversion_of(GRPO[0], [*GRPO[1:], "reward.custom_reward_function.path=rewards.py"])
    assert found.fields["rewards.functions"] == [{"path": "rewards.py", "function": "compute_score"}]
    assert not found.left


@pytest.mark.parametrize(
    ("source", "response", "right"),
    [
        ("math_dapo", "17 + 17\nAnswer: 34", True),
        ("math", "Answer: 35, no.\nanswer : $34$\n", True),
        ("aime24", r"Answer: $x = \boxed{34}$", True),
        ("math_dapo_reasoning", "Answer:\n34" + 290 * " ", True),
        ("math_dapo", "Answer: 34" + 291 * " ", False),  # verl reads the last 300 characters
        ("math_dapo", "Answer: 35", False),
        ("math_dapo", "Answer: 34\nAnswer: 134", False),
        ("math_dapo", r"Answer: \frac{34}{1}", False),
        ("math_dapo", r"\boxed{34}", False),
        ("lighteval/MATH", r"\boxed{34}", True),
        ("lighteval/MATH", "Answer: 34", False),
    ],
)
def test_a_source_of_verl_is_scored_by_what_verl_looks_for(source: str, response: str, right: bool) -> None:
    text = rendered(conversion_of(GRPO[0], GRPO[1:]), "test")
    functions = RLJobSpec.model_validate(yaml.safe_load(text)["spec"]).rewards.functions
    (function,) = (each for each in functions if covers(each.data_sources, source))
    setup = FunctionSetup("r", function.builtin, None, None, None, "compute_score", function.arguments)
    reward = load(setup, base_dir=Path(), field="spec.rewards.functions[0]")
    assert reward(Call(source, response, "34", {})) == right


def test_validation_samples_that_would_be_equal_are_one() -> None:
    greedy = conversion_of(GRPO[0], [*GRPO[1:], "actor_rollout_ref.rollout.val_kwargs.n=4"]).fields
    assert ("rollout.validation.samplesPerPrompt" in greedy, greedy["rollout.validation.temperature"]) == (False, 0.0)


@pytest.mark.parametrize("table", [VERL, TRL, TRL_DPO], ids=["verl", "trl", "dpo"])
def test_a_table_names_fields_that_exist_and_each_setting_once(table: Any) -> None:
    keys = [row.key for row in table.rows]
    assert len(keys) == len(set(keys))
    conversion = Conversion({}, fields={row.field: "x" for row in table.rows})
    assert rendered(conversion, "test")  # an unknown field has no default, and raises


def test_an_experiment_s_name_becomes_an_object_s_name() -> None:
    assert object_name("DAPO-Qwen2.5_7B") == "dapo-qwen2-5-7b"
    assert object_name("7b run") == "job-7b-run"
