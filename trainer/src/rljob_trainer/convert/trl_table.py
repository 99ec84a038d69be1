"""Settings of TRL's GRPOConfig and their fields: one row each. Names and defaults are those of TRL 1.16.

Fields that depend on several settings are in `trl_rules`.
"""

from typing import Any, Final

from rljob_trainer.convert import trl_rules as rules
from rljob_trainer.convert.conversion import Only, Row, Table, Unneeded


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


ROWS: Final = (
    Row("model_name_or_path", "model.path", None),
    Row("model_revision", "model.revision", None),
    Row("trust_remote_code", "model.trustRemoteCode", default=False),
    Row("attn_implementation", "model.attention", None),
    Row(
        "dataset_name",
        "data.train",
        None,
        _as_list,
        "rows need the columns prompt, data_source and reward_model: rename TRL's",
    ),
    Row("max_completion_length", "data.maxResponseTokens", 512),
    Row("shuffle_dataset", "data.shuffle", default=True),
    Row("chat_template_kwargs", "data.templateArguments", None),
    Row("num_generations", "rollout.samplesPerPrompt", 8),
    Row("temperature", "rollout.temperature", 1.0),
    Row("top_p", "rollout.topP", 1.0),
    Row("top_k", "rollout.topK", 0, lambda value: value or -1),
    Row("vllm_gpu_memory_utilization", "rollout.gpuMemoryUtilization", 0.3),
    Row("vllm_tensor_parallel_size", "rollout.tensorParallelSize", 1),
    Row("learning_rate", "actor.learningRate", 1e-6),
    Row("weight_decay", "actor.weightDecay", 0.0),
    Row("adam_beta1", "actor.beta1", 0.9),
    Row("adam_beta2", "actor.beta2", 0.999),
    Row("max_grad_norm", "actor.gradClip", 1.0),
    Row("num_iterations", "actor.epochs", 1),
    Row("torch_compile", "actor.compile", default=None),
    Row("entropy_coef", "algorithm.entropyCoefficient", 0.0),
    Row("eval_on_start", "training.validateBeforeTraining", default=False),
    Row("project", "training.project", "huggingface"),
    Row("data_seed", "data.seed", None),
    Row("seed", "rollout.seed", 42),
)
"""Settings that are one field each."""

ONLY: Final = (
    Only(
        "optim",
        ("adamw_torch", "adamw_torch_fused"),
        "the optimizer is AdamW in float32: see actor.optimizer, fsdp.offload",
    ),
    Only("optim_args", (), "the optimizer is AdamW"),
    Only("adam_epsilon", (1e-8,), "AdamW's epsilon is 1e-8"),
    Only("lr_scheduler_kwargs", ({},), "set actor.lrSchedule"),
    Only("fp16", (False,), "set model.dtype"),
    Only("min_p", (), "sampling has temperature, topP and topK"),
    Only("repetition_penalty", (1.0,), "it changes the probabilities that the loss reads"),
    Only("generation_kwargs", (), "sampling has temperature, topP and topK"),
    Only("vllm_mode", ("colocate",), "engines share the trainer's GPUs"),
    Only("vllm_structured_outputs_regex", (), "it changes the probabilities that the loss reads"),
    Only("mask_truncated_completions", (False,), "truncated responses are in the loss"),
    Only("top_entropy_quantile", (1.0,), "all tokens are in the loss"),
    Only("use_adaptive_entropy", (False,), "the coefficient is fixed"),
    Only(
        "ref_model_mixup_alpha", (1.0,), "the reference becomes the policy, and is not mixed: algorithm.kl.refreshEvery"
    ),
    Only("multi_objective_aggregation", ("sum_then_normalize",), "rewards are summed first"),
    Only("off_policy_mask_threshold", (), "no sequence is masked"),
    Only("max_tool_calling_iterations", (), "rollouts have one turn here: set spec.environment by hand"),
    Only("router_aux_loss_coef", (0.0,), "experts have no loss of their own"),
    Only("label_smoothing_factor", (0.0,), "it is no part of a policy loss"),
    Only("neftune_noise_alpha", (), "embeddings have no noise"),
    Only("resume_from_checkpoint", (False,), "TRL's checkpoints are not read: set model.path to the folder"),
    Only("train_sampling_strategy", ("random",), "prompts come in order or shuffled"),
    Only("eval_delay", (0,), "validation begins at training.validateEvery"),
    Only("load_best_model_at_end", (False,), "set checkpoint.keepBest, and export that step"),
    Only("push_to_hub", (False,), "use `rljob export`, then upload the folder"),
    Only("load_in_*bit", (False,), "weights are not quantized"),
    Only("deepspeed", (), "the trainer is FSDP2"),
    Only("dataset_config", (), "write org/name?config=NAME in data.train"),
    Only("dataset_train_split", ("train",), "write org/name?split=NAME in data.train"),
    Only("dataset_test_split", ("test",), "write org/name?split=NAME in data.validation"),
    Only("model_init_kwargs", ({},), "set the fields of spec.model"),
)
"""Settings of which RLJob has one value."""

UNNEEDED: Final = (
    Unneeded("master weights are float32, and products bfloat16 on GPUs", ("bf16*", "tf32", "fp16_full_eval", "dtype",
             "torch_dtype", "cast_lm_head_to_fp32")),
    Unneeded("rank, sharding and kernels are chosen by the hardware", ("fsdp*", "ddp_*", "*accelerator*", "use_cpu",
             "use_liger_kernel", "liger_kernel_config", "local_rank", "ds3_*", "parallelism_config", "auto_find_*",
             "gradient_checkpointing_kwargs", "torch_compile_*", "torch_empty_cache_steps", "pad_to_multiple_of",
             "use_cache", "cache_implementation", "disable_dropout", "full_determinism", "average_tokens_*")),
    Unneeded("metrics, samples and checkpoints are in the run's folder", ("output_dir", "logging_*", "log_*",
             "run_name", "disable_tqdm", "trackio_*", "hub_*", "save_only_model", "save_on_each_node",
             "metric_for_best_model", "greater_is_better", "include_*", "num_completions_to_print",
             "enable_jit_checkpoint", "skip_memory_metrics",
             "debug", "do_train", "do_eval", "do_predict", "overwrite_output_dir", "restore_callback_*")),
    Unneeded("data and engine need no such setting", ("dataloader_*", "remove_unused_columns", "label_names",
             "length_column_name", "ignore_data_skip", "per_device_eval_batch_size", "eval_do_*", "eval_use_*",
             "eval_accumulation_steps", "prediction_loss_only", "batch_eval_metrics", "vllm_server_*",
             "vllm_group_port", "vllm_enable_sleep_mode", "vllm_max_model_length", "vllm_model_impl",
             "optim_target_modules",
             "use_transformers_*", "transformers_continuous_*", "vespo_*", "entropy_coef_*", "entropy_target",
             "dataset_streaming", "lora_*")),
)  # fmt: skip
"""Settings that change no result."""

TRL: Final = Table(ROWS, ONLY, UNNEEDED, rules.RULES)
