"""`rljob convert` of TRL's GRPOConfig and DPOConfig."""

from pathlib import Path

from rljob_api.validation import validate
from rljob_trainer.convert.convert import conversion_of
from rljob_trainer.convert.document import rendered
from rljob_trainer.convert.trl_dpo import OF_DPO, TRL_DPO
from rljob_trainer.convert.trl_table import TRL
from tests.rljob_trainer.convert_support import spec


def test_trl_s_settings_of_vllm_count_if_vllm_samples(tmp_path: Path) -> None:
    file = tmp_path / "grpo.yaml"
    file.write_text("{model_name_or_path: a/b, dataset_name: a/c, reward_funcs: [r.f], use_vllm: true}")
    more = ["vllm_importance_sampling_cap=2.0", "vllm_server_port=8000"]
    used, unused = (conversion_of(str(file), [*more, f"use_vllm={value}"]).left for value in ("true", "false"))
    assert sorted(used) == ["vllm_importance_sampling_cap", "vllm_importance_sampling_correction"]
    assert not unused


def test_trl_counts_completions_and_optimizer_steps(tmp_path: Path) -> None:
    """8 completions x 4 accumulated x 8 processes = 256 a step, of 8 each: 32 prompts; two updates of it a batch."""
    file = tmp_path / "grpo.yaml"
    file.write_text(
        "{model_name_or_path: org/model, dataset_name: org/data, per_device_train_batch_size: 8,"
        " gradient_accumulation_steps: 4, steps_per_generation: 8, max_steps: 100, beta: 0.04, delta: 4.0,"
        " loss_type: dr_grpo, scale_rewards: none, reward_funcs: [rewards.exact], max_completion_length: 1024}"
    )
    conversion = conversion_of(str(file), ["num_processes=8"])
    assert not conversion.left
    found = spec(conversion)
    assert (found["data"]["promptsPerStep"], found["actor"]["miniBatchSize"]) == (64, 32)
    assert (found["training"]["steps"], found["checkpoint"]["everySteps"]) == (50, 250)
    assert found["algorithm"]["preset"] == "dr_grpo"
    assert (found["algorithm"]["loss"], found["algorithm"]["clipRatioC"]) == ("dual_clip", 4)
    validated = conversion_of(str(file), ["num_processes=8", "eval_strategy=steps", "eval_steps=20", "temperature=0.7"])
    assert validated.fields["training.validateEvery"] == 10
    assert "eval_strategy" in conversion_of(str(file), ["num_processes=8", "eval_strategy=epoch"]).left
    names = ("samplesPerPrompt", "temperature", "topP")
    assert [validated.fields[f"rollout.validation.{each}"] for each in names] == [8, 0.7, 1.0]
    assert found["algorithm"]["kl"] == {"placement": "loss", "coefficient": 0.04, "estimator": "k2"}
    assert not validate(rendered(conversion, "test"), "test").problems
    more = ["num_processes=8", "importance_sampling_level=sequence", "use_bias_correction_kl=false"]
    by_sequence = conversion_of(str(file), more)
    assert by_sequence.left.keys() == {"delta"}
    assert by_sequence.fields["algorithm.kl.estimator"] == "k3"


def test_trl_s_settings_are_words_too() -> None:
    conversion = conversion_of("model_name_or_path=org/model", ["num_generations=4", "reward_funcs=rewards.exact"])
    assert (conversion.fields["model.path"], conversion.fields["rollout.samplesPerPrompt"]) == ("org/model", 4)


def test_trl_s_corrected_k3_has_the_gradient_of_k2() -> None:
    import torch

    from rljob_trainer.losses.kl import kl_estimate

    old, reference = torch.tensor([-0.5, -2.0, -4.0]), torch.tensor([-1.5, -1.0, -4.2])
    for_trl, for_us = (old.clone().requires_grad_() for _ in range(2))
    k3 = torch.exp(reference - for_trl) - (reference - for_trl) - 1  # as GRPOTrainer._compute_loss
    (k3 * torch.exp(for_trl - old)).sum().backward()
    kl_estimate("k2", for_us, reference).sum().backward()
    torch.testing.assert_close(for_trl.grad, for_us.grad)


def test_trl_s_dpo_is_preset_dpo_on_as_many_pairs(tmp_path: Path) -> None:
    file = tmp_path / "dpo.yaml"
    file.write_text(
        "{model_name_or_path: org/model, dataset_name: org/pairs, per_device_train_batch_size: 4, max_steps: 100,"
        " gradient_accumulation_steps: 2, loss_type: sigmoid, max_length: 2048, learning_rate: 5.0e-7, save_steps: 50}"
    )
    conversion = conversion_of(str(file), ["num_processes=2", "precompute_ref_log_probs=true", "report_to=wandb"])
    assert not conversion.left
    found = spec(conversion)
    assert found["algorithm"] == {"preset": "dpo", "dpoBeta": 0.1}
    assert (found["data"]["promptsPerStep"], found["data"]["maxResponseTokens"]) == (16, 2048)
    assert (found["training"]["steps"], found["checkpoint"]["everySteps"]) == (100, 50)
    assert not validate(rendered(conversion, "test"), "test").problems
    others = ["loss_type=ipo", "label_smoothing=0.1", "eval_strategy=steps", "sync_ref_model=true"]
    left = conversion_of(str(file), others).left
    assert left.keys() == {each.partition("=")[0] for each in others}
    assert "lossFrom" not in left["loss_type"]  # preset dpo refuses it


def test_trl_names_only_settings_of_its_configuration() -> None:
    import dataclasses

    from trl import DPOConfig, GRPOConfig

    of_scripts = {"model_name_or_path", "model_revision", "trust_remote_code", "attn_implementation", "dataset_name"}
    grpo, dpo = ({field.name for field in dataclasses.fields(each)} for each in (GRPOConfig, DPOConfig))
    assert {row.key for row in TRL.rows} <= grpo | of_scripts
    assert {row.key for row in TRL_DPO.rows} <= dpo | of_scripts
    assert {each for each in OF_DPO if each not in dpo or each in grpo} == set()
