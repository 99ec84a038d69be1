"""What a job asks of one GPU. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rljob_api import ResolvedSpec
from rljob_trainer.compute.dtypes import ITEM_BYTES, compute_dtype
from rljob_trainer.memory.model import ModelSize
from rljob_trainer.memory.sequences import FEW_SEQUENCES

BATCHED_TOKENS = 8192
"""Tokens that vLLM computes at once, by default: they bound its activations."""


@dataclass(frozen=True, slots=True)
class Work:
    """What decides the memory of one GPU, besides the model.

    shards: ranks that share parameters, gradients and optimizer. tokens: of one pass. longest: of one sample.
    accumulates: whether a minibatch takes several passes, so that gradients exist while the next one runs.
    element: bytes of a number in the compute dtype: of matrix products, frozen models and engines.
    recompute: blocks compute their activations again, if they can. host_inputs: from inputs that wait in host memory.
    compiled: blocks are compiled.
    reshard: layers are gathered again in the backward pass.
    host_weights, host_optimizer: they are in host memory between uses.
    reference: the ranks hold a frozen copy, or one of the adapter.
    average: the ranks hold an average of the policy.
    teacher: size of the teacher, of which the ranks hold a frozen model; None without one.
    critic: size of the critic, which the ranks train besides; None without one.
    bucket: bytes of one bucket of the sync.
    engines: that share the GPU; 0 if the job has none. share: of the GPU, for all of them while they generate.
    whole_share: the engines take all of it, as vLLM wants while it starts.
    contexts: of episodes that an engine keeps from turn to turn; 0 without an environment.
    keeps_model: engines keep the model below an adapter from one update to the next. model_stays: on the GPU.
    tensor_parallel: GPUs of one engine. sequences: that an engine generates at once. eager: no CUDA graphs.
    quantized: engines hold the blocks in FP8. batched: tokens that an engine computes at once, at most.
    """

    shards: int
    tokens: int
    longest: int
    accumulates: bool
    element: int
    recompute: bool
    host_inputs: bool
    compiled: bool
    reshard: bool
    host_weights: bool
    host_optimizer: bool
    reference: bool
    bucket: int
    engines: int
    share: float
    tensor_parallel: int
    sequences: int
    eager: bool
    critic: ModelSize | None = None
    teacher: ModelSize | None = None
    keeps_model: bool = False
    average: bool = False
    whole_share: bool = False
    contexts: int = 0
    quantized: bool = False
    batched: int = BATCHED_TOKENS

    @property
    def model_stays(self) -> bool:
        return self.keeps_model and self.share > 0


def work_of(spec: ResolvedSpec, critic: ModelSize | None = None, teacher: ModelSize | None = None) -> Work:
    """critic, teacher: memory.critic's and memory.teacher's size."""
    actor, data, rollout, lora = spec.actor, spec.data, spec.rollout, spec.model.lora
    copied = lora is None or bool(spec.sft or lora.path or spec.algorithm.kl.refresh_every)
    longest = spec.longest_sample
    prompts = data.prompts_per_step if spec.supervised_only else actor.mini_batch_size
    samples = prompts * (2 if spec.pairs else 1 if spec.supervised_only else rollout.samples_per_prompt)
    each = -(-samples // spec.ranks) * longest  # tokens of a rank in a minibatch, at most
    return Work(
        shards=spec.ranks // actor.fsdp.replicas,
        tokens=min(actor.tokens_per_micro_batch, each),
        longest=longest,
        accumulates=each > actor.tokens_per_micro_batch,
        element=ITEM_BYTES[compute_dtype(spec, "cuda")],
        recompute=actor.recompute != "none",
        host_inputs=actor.recompute == "offload",
        compiled=actor.compile is not False,
        reshard=actor.fsdp.reshard_after_forward,
        host_weights=actor.fsdp.offload in {"parameters", "all"},
        host_optimizer=actor.fsdp.offload in {"optimizer", "all"},
        reference=spec.needs_reference and copied,
        bucket=rollout.weight_sync.bucket_mib << 20,
        engines=0 if spec.supervised_only else rollout.engines_per_gpu,
        share=rollout.gpu_memory_utilization if rollout.engine == "vllm" else 0.0,
        tensor_parallel=rollout.tensor_parallel_size,
        sequences=rollout.max_num_seqs or FEW_SEQUENCES,
        eager=rollout.enforce_eager,
        keeps_model=lora is not None and not lora.merge and not spec.supervised_only,
        contexts=contexts_of_an_engine(spec),
        critic=critic,
        teacher=teacher,
        average=actor.ema_decay is not None,
        quantized=rollout.quantization != "none",
        batched=_batched(rollout.engine_arguments),
    )


def _batched(arguments: Mapping[str, Any]) -> int:
    """arguments: of vLLM, which judges them."""
    given = arguments.get("max_num_batched_tokens")
    return given if isinstance(given, int) and given > 0 else BATCHED_TOKENS


def contexts_of_an_engine(spec: ResolvedSpec) -> int:
    """Episodes of a step that are an engine's; 0 if an episode is one turn."""
    if spec.environment is None:
        return 0
    rollout = spec.rollout
    groups = math.ceil(spec.data.prompts_per_step * (1 + spec.algorithm.dynamic_sampling.oversample))
    engines = max(1, spec.ranks * rollout.engines_per_gpu // rollout.tensor_parallel_size)
    return math.ceil(groups * rollout.samples_per_prompt / engines)
