"""verl's settings and their fields: one row each. Names and defaults are those of verl 0.9's ppo_trainer.yaml.

Fields that depend on several settings are in `verl_rules`. What decides speed alone has no default here: the memory
plan chooses it.
"""

from typing import Any, Final

from rljob_trainer.convert import verl_rules as rules
from rljob_trainer.convert.conversion import Only, Row, Table, Unneeded

_ACTOR: Final = "actor_rollout_ref.actor"
_MODEL: Final = "actor_rollout_ref.model"
_ROLLOUT: Final = "actor_rollout_ref.rollout"


def _files(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


ROWS: Final = (
    Row(f"{_MODEL}.path", "model.path", None),
    Row(f"{_MODEL}.trust_remote_code", "model.trustRemoteCode", default=False),
    Row(f"{_MODEL}.custom_chat_template", "model.chatTemplate", None),
    Row(f"{_MODEL}.override_config.attn_implementation", "model.attention", None),
    Row("data.train_files", "data.train", None, _files),
    Row("data.val_files", "data.validation", None, _files),
    Row("data.max_prompt_length", "data.maxPromptTokens", 512),
    Row("data.max_response_length", "data.maxResponseTokens", 512),
    Row("data.train_batch_size", "data.promptsPerStep", 1024),
    Row("data.shuffle", "data.shuffle", default=True),
    Row("data.seed", "data.seed", None),
    Row("data.apply_chat_template_kwargs", "data.templateArguments", None),
    Row(f"{_ROLLOUT}.n", "rollout.samplesPerPrompt", 1),
    Row(f"{_ROLLOUT}.temperature", "rollout.temperature", 1.0),
    Row(f"{_ROLLOUT}.top_p", "rollout.topP", 1.0),
    Row(f"{_ROLLOUT}.top_k", "rollout.topK", -1, lambda value: value or -1),
    Row(f"{_ROLLOUT}.tensor_model_parallel_size", "rollout.tensorParallelSize", 2),
    Row(
        f"{_ROLLOUT}.gpu_memory_utilization",
        "rollout.gpuMemoryUtilization",
        None,
        note="a part of the whole GPU, as in verl; `rljob plan` says whether weights and gradients fit beside it",
    ),
    Row(f"{_ROLLOUT}.max_num_seqs", "rollout.maxNumSeqs", None),
    Row(
        f"{_ROLLOUT}.over_sample_rate",
        "algorithm.dynamicSampling.oversample",
        None,
        note="verl aborts this share of the batch; here the step keeps its prompts, and begins more",
    ),
    Row(f"{_ROLLOUT}.enforce_eager", "rollout.enforceEager", default=False),
    Row(f"{_ACTOR}.optim.lr", "actor.learningRate", 1e-6),
    Row(f"{_ACTOR}.optim.weight_decay", "actor.weightDecay", 0.01),
    Row(f"{_ACTOR}.grad_clip", "actor.gradClip", 1.0),
    Row(f"{_ACTOR}.ppo_epochs", "actor.epochs", 1),
    Row(f"{_ACTOR}.entropy_coeff", "algorithm.entropyCoefficient", 0.0),
    Row(f"{_ACTOR}.fsdp_config.reshard_after_forward", "actor.fsdp.reshardAfterForward", default=True),
    Row("trainer.total_training_steps", "training.steps", None),
    Row("trainer.total_epochs", "training.epochs", 30),
    Row("trainer.project_name", "training.project", "verl_examples"),
    Row("trainer.val_before_train", "training.validateBeforeTraining", default=True),
    Row("trainer.nnodes", "cluster.nodes", 1),
    Row("trainer.n_gpus_per_node", "cluster.gpusPerNode", 8),
    Row(
        "trainer.save_freq",
        "checkpoint.everySteps",
        -1,
        lambda value: max(0, value),
        note="a checkpoint is saved after the last step too",
    ),
)
"""Settings that are one field each."""

ONLY: Final = (
    Only("data.prompt_key", ("prompt",), "rows have the column prompt: rename the column"),
    Only("data.reward_fn_key", ("data_source",), "rows have the column data_source: rename the column"),
    Only("data.custom_cls.*", (), "no class reads the data: write its rows into a file of data.train"),
    Only("data.sampler.*", (), "prompts come in order or shuffled"),
    Only("data.datagen.*", (), "no class makes data during the run"),
    Only("data.*_max_samples", (-1,), "all rows are used: write fewer into the file"),
    Only("data.tokenizer", (), "the tokenizer is the model's"),
    Only("data.tool_config_path", (), "verl's tools are no environment of RLJob"),
    Only("data.video_key", ("videos",), "videos are not supported"),
    Only(f"{_MODEL}.override_config.*", (), "the model's configuration is as it is saved: change its config.json"),
    Only(f"{_MODEL}.override_config", ({},), "the model's configuration is as it is saved: change its config.json"),
    Only(f"{_MODEL}.*_path", (), "configuration, tokenizer and weights are in one folder, model.path"),
    Only("*.external_lib", (), "no other library registers models"),
    Only(f"{_MODEL}.exclude_modules", (), "targetModules names the layers"),
    Only(f"{_MODEL}.mtp.enable", (False,), "multi-token prediction is not supported"),
    Only("*.strategy", ("fsdp", "fsdp2"), "the trainer is FSDP2"),
    Only("*.megatron*", (), "Megatron is not supported"),
    Only("*.model_dtype", ("fp32", "float32"), "master weights are float32"),
    Only("*.fsdp_config.dtype", ("bfloat16",), "set model.dtype"),
    Only(
        f"{_ACTOR}.ulysses_sequence_parallel_size",
        (1,),
        "a sequence is not split over GPUs: `rljob plan` says whether it fits one",
    ),
    Only("*.optim.optimizer", ("AdamW",), "the optimizer is AdamW"),
    Only("*.optim.optimizer_impl", ("torch.optim",), "the optimizer is AdamW"),
    Only("*.optim.override_optimizer_config*", ({},), "AdamW has the fields of spec.actor"),
    Only("*.optim.clip_grad", (1.0,), "verl reads actor.grad_clip in its place"),
    Only("*.optim.num_cycles", (0.5,), "the cosine falls once"),
    Only("*.freeze_vision_tower", (False,), "images are not supported"),
    Only("critic.optim.betas", ([0.9, 0.999],), "the critic has actor.beta1 and actor.beta2"),
    Only("reward_model.model.input_tokenizer", (), "the reward model's server has its own tokenizer and template"),
    Only("critic.shuffle", (False,), "minibatches are in the order of the prompts"),
    Only(f"{_ACTOR}.shuffle", (False,), "minibatches are in the order of the prompts"),
    Only(f"{_ACTOR}.loss_scale_factor", (), "dr_grpo divides by data.maxResponseTokens"),
    Only("*.router_replay.mode", ("disabled",), "experts are chosen again in training"),
    Only("*.enable_rollout_routing_replay", (False,), "experts are chosen again in training"),
    Only(f"{_ROLLOUT}.ignore_eos", (False,), "a response ends at the end token"),
    Only(f"{_ROLLOUT}.do_sample", (True,), "training samples; set rollout.temperature"),
    Only(f"{_ROLLOUT}.dtype", ("bfloat16",), "set model.dtype"),
    Only(f"{_ROLLOUT}.quantization_config*", (), "rollout.quantization has no other settings"),
    Only(f"{_ROLLOUT}.*_parallel_size", (1,), "an engine is split by rollout.tensorParallelSize only"),
    Only(f"{_ROLLOUT}.logprobs_mode", ("processed_logprobs",), "the trainer chooses it"),
    Only(f"{_ROLLOUT}.agent.default_agent_loop", ("single_turn_agent",), "verl's agent loops are not run here"),
    Only(f"{_ROLLOUT}.agent.*_path", (), "verl's agent loops are not run here"),
    Only(f"{_ROLLOUT}.val_kwargs.top_k", (-1, 0), "validation samples from all tokens of top_p"),
    Only("algorithm.use_pf_ppo", (False,), "samples are not weighted again"),
    Only(
        "algorithm.filter_groups.metric", ("seq_reward", "seq_final_reward", "score"), "groups are compared by reward"
    ),
    Only("reward_manager.*.path", (), "there are no reward managers: write a function of rewards.functions"),
    Only("reward_model.sandbox_fusion.url", (), "write a reward function that calls the sandbox"),
    Only("reward_model.reward_kwargs.overlong_buffer_cfg.log", (True, False), ""),
    Only("trainer.device", ("cuda",), "set cluster.gpuResource"),
    Only("trainer.val_only", (False,), "use `rljob eval`"),
    Only("trainer.resume_from_path", (), "verl's checkpoints are not read: export a model, and set model.path"),
    Only("trainer.default_hdfs_dir", (), "checkpoints are on the run's volume"),
    Only("distillation.distillation_loss.loss_max_clamp", (), "the teacher's signal is not clamped"),
    Only("distillation.distillation_loss.policy_loss_mode", ("vanilla",), "set algorithm.loss"),
    Only("transfer_queue.enable", (False,), "there is no transfer queue"),
)
"""Settings of which RLJob has one value."""

UNNEEDED: Final = (
    Unneeded(
        "micro-batches are packed by tokens, without padding: actor.tokensPerMicroBatch",
        ("*micro_batch_size*", "*use_remove_padding", "*use_dynamic_bsz", "*balance_batch", "*max_token_len_per_gpu"),
    ),
    Unneeded(
        "the reference and the old log-probabilities share the policy's memory settings",
        ("actor_rollout_ref.ref.*", f"{_ROLLOUT}.log_prob_*"),
    ),
    Unneeded(
        "the output head is computed in pieces, and kernels are chosen by the hardware",
        ("*use_liger", "*fused_kernel*", "*_checkpointing", "*.entropy_from_logits*", "*.use_torch_compile",
         "*.tiled_mlp.*", "*.use_prefix_grouper", "*.calculate_*"),
    ),
    Unneeded(
        "the engine and its transfer of weights need no such setting",
        (f"{_ROLLOUT}.mode", f"{_ROLLOUT}.load_format", f"{_ROLLOUT}.layered_summon", f"{_ROLLOUT}.free_cache_engine",
         f"{_ROLLOUT}.multi_stage_wake_up", f"{_ROLLOUT}.max_model_len", f"{_ROLLOUT}.*_length",
         f"{_ROLLOUT}.disable_log_stats", f"{_ROLLOUT}.skip_*", f"{_ROLLOUT}.checkpoint_engine.*",
         f"{_ROLLOUT}.scheduling_policy", f"{_ROLLOUT}.cudagraph_capture_sizes", f"{_ROLLOUT}.agent.*",
         f"{_ROLLOUT}.trace.*", f"{_ROLLOUT}.prometheus.*", f"{_ROLLOUT}.multi_turn.*", f"{_ROLLOUT}.mtp*",
         f"{_ROLLOUT}.engine_kwargs.sglang*", f"{_ROLLOUT}.engine_kwargs.trtllm*"),
    ),
    Unneeded(
        "files are read once, and rows keep their messages",
        ("data.return_*", "data.*_workers", "data.val_batch_size", "data.gen_batch_size", "data.*use_shm",
         "data.validation_shuffle", "data.image_patch_size", "data.trust_remote_code", "data.custom_cls.name",
         "data.sampler.class_name"),
    ),
    Unneeded(
        "the run's folder holds checkpoints, samples and metrics; `rljob` reads them",
        ("trainer.default_local_dir", "trainer.*_data_dir", "trainer.log_val_generations", "*.checkpoint.*",
         "trainer.max_critic_ckpt_to_keep", "trainer.del_local_ckpt_after_load"),
    ),
    Unneeded(
        "reward functions and the servers of reward models have processes and GPUs of their own",
        ("reward_model.n_gpus_per_node", "reward_model.nnodes", "reward_model.enable_resource_pool",
         "reward_model.use_reward_loop", "reward_model.num_workers", "reward_model.launch_reward_fn_async",
         "reward_model.sandbox_fusion.*", "reward_model.rollout.name", "reward_model.rollout.mode",
         "reward_model.rollout.gpu_memory_utilization", "reward_model.rollout.prompt_length",
         "reward_model.rollout.response_length", "reward_model.rollout.load_format",
         "reward_model.rollout.enforce_eager", "reward_model.rollout.free_cache_engine",
         "reward_model.rollout.skip_tokenizer_init", "reward_model.model.fsdp_config.*", "reward_model.model.use_shm"),
    ),
    Unneeded(
        "the ranks hold the teacher, and score what an update reads",
        ("distillation.teacher_models.*", "distillation.teacher_key", "distillation.n_gpus_per_node",
         "distillation.nnodes", "distillation.distillation_loss.*chunk*", "distillation.distillation_loss.clip_ratio"),
    ),
    Unneeded(
        "the critic shares the policy's memory settings",
        ("critic.*",),
    ),
    Unneeded(
        "they concern verl's own processes",
        ("*_target_", "*.profiler.*", "global_profiler.*", "*nccl_timeout", "ray_kwargs.*", "ray_init.*",
         "trainer.ray_wait_register_center_timeout", "trainer.use_legacy_worker_impl", "trainer.esi_redundant_time",
         "*hybrid_engine", f"{_MODEL}.use_shm", f"{_MODEL}.torch_dtype", f"{_MODEL}.mtp.*", "*.wrap_policy.*",
         "*.forward_prefetch", "*.fsdp_size", "*ulysses_sequence_parallel_size",
         "*.forward_only", "*.use_orig_params", "*.offload_policy", "*.full_determinism",
         "*.fsdp_config.seed", "*.rollout_n", "*.data_loader_seed", "*.router_replay.*",
         "*.optim.total_training_steps", "*.strategy", "reward_manager.*", "algorithm.pf_ppo.*", "transfer_queue.*"),
    ),
)  # fmt: skip
"""Settings that change no result."""

VERL: Final = Table(ROWS, ONLY, UNNEEDED, rules.RULES)

RENAMED: Final = {
    "reward.custom_reward_function": "custom_reward_function",
    "reward.reward_manager.name": "reward_model.reward_manager",
    "reward.reward_model": "reward_model",
    "reward.reward_kwargs": "reward_model.reward_kwargs",
    "reward.sandbox_fusion": "reward_model.sandbox_fusion",
    "reward_manager.name": "reward_model.reward_manager",
    "actor_rollout_ref.actor.optim.warmup_style": "actor_rollout_ref.actor.optim.lr_scheduler_type",
}
"""Settings that verl 0.10 and verl before 0.6 name differently, and their names here."""
