"""A random model with the trainer's own modules, and one update of it after another."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import Qwen2Config

from bench.update import plain_head
from rljob_api import ResolvedSpec, RLJobSpec, resolve
from rljob_trainer.losses.output_head import score_tokens
from rljob_trainer.losses.totals import BatchTotals
from rljob_trainer.rank import forward
from rljob_trainer.rank.models.role import ModelRole, adamw
from rljob_trainer.rank.parallel import ParallelDims
from rljob_trainer.rank.plan import plan_step
from rljob_trainer.rank.shard import Shard, ShardSample
from rljob_trainer.rank.sharding import sharded_policy
from rljob_trainer.rank.step import QueuedStep, Trainee, queue_policy_step
from rljob_trainer.types import answered

SAMPLES_A_PASS, PASSES = 16, 4

RATE = 1e-6


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Qwen2.5 model, and mean tokens of its samples: an update is of four passes of 10,240 tokens."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int = 151_936
    prompt: int = 128
    answer: int = 512


SHAPES = {
    "tiny": Shape(64, 96, 2, 2, 1, vocabulary=500, prompt=8, answer=32),
    "0.5B": Shape(896, 4864, 24, 14, 2),
    "1.5B": Shape(1536, 8960, 28, 12, 2),
}


@dataclass(frozen=True, slots=True)
class Variant:
    """Settings of spec.actor, and whether the output head is fused."""

    compile: bool = True
    recompute: Literal["none", "layer", "offload"] = "none"
    offload: Literal["none", "parameters", "optimizer", "all"] = "none"
    reshard: bool = True
    fused_head: bool = True

    def __str__(self) -> str:
        words = ["compiled" if self.compile else "eager", f"recompute {self.recompute}"]
        words += [f"offload {self.offload}"] if self.offload != "none" else []
        words += [] if self.reshard else ["no reshard"]
        return ", ".join(words + ([] if self.fused_head else ["plain head"]))


def spec_of(shape: Shape, variant: Variant, dtype: str, **algorithm: Any) -> ResolvedSpec:
    actor = {
        "compile": variant.compile,
        "recompute": variant.recompute,
        "fsdp": {"offload": variant.offload, "reshardAfterForward": variant.reshard},
        "tokensPerMicroBatch": SAMPLES_A_PASS * (shape.prompt + shape.answer),
    }
    written = {
        "model": {"path": "model", "dtype": dtype},
        "data": {"train": ["rows.jsonl"], "maxPromptTokens": 2 * shape.prompt, "maxResponseTokens": 2 * shape.answer},
        "algorithm": {"preset": "grpo", "kl": {"placement": "none"}, **algorithm},
        "rewards": {"functions": [{"name": "exact", "builtin": "exact_match"}]},
        "training": {"steps": 1},
        "actor": actor,
    }
    return resolve(RLJobSpec.model_validate(written))


class Trained:
    """A model of a shape with random weights, and random samples for it."""

    def __init__(self, shape: Shape, spec: ResolvedSpec, device: torch.device) -> None:
        self.spec, self.device = spec, device
        config = Qwen2Config(
            vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
            max_position_embeddings=32_768, tie_word_embeddings=True, architectures=["Qwen2ForCausalLM"],
        )  # fmt: skip
        mesh = ParallelDims().mesh(device.type)
        with tempfile.TemporaryDirectory(prefix="rljob-update-") as folder, device:
            config.save_pretrained(folder)
            self.policy = sharded_policy(spec, Path(folder), mesh, trainable=True)
        _fill(self.policy, device)
        self.optimizer = adamw(self.policy, spec, device)
        role = ModelRole("policy", self.policy, self.policy.model, self.optimizer)
        self.trainee = Trainee(role, self.optimizer, device, ParallelDims(), spec.actor.grad_clip)
        self.parameters = sum(each.numel() for each in self.policy.parameters())
        self.shard = _shard_of(spec, shape)
        self.tokens = sum(len(each.trajectory.token_ids) for each in self.shard.ordered)

    def queue(self) -> QueuedStep:
        """Give the device one update."""
        for sample in self.shard.ordered:
            sample.old_log_probs = None
        return queue_policy_step(self.trainee, self.shard, self.spec, RATE, 0.0)


def _fill(policy: forward.Policy, device: torch.device) -> None:
    """Weights as of an initialised model; the same for every variant, wherever its parameters lie."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            if parameter.dim() == 1:
                local.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                local.copy_(torch.empty(local.shape, device=device).normal_(std=0.02))


def _shard_of(spec: ResolvedSpec, shape: Shape) -> Shard:
    """Samples whose lengths differ by up to a fifth, so that packs have different lengths."""
    draw = np.random.default_rng(0)
    samples = {}
    for index in range(SAMPLES_A_PASS * PASSES):
        answer = shape.answer + int(draw.integers(-shape.answer // 5, shape.answer // 5 + 1))
        ids = draw.integers(0, shape.vocabulary, shape.prompt + answer).astype(np.int32)
        log_probs = np.full(answer, -1.0, np.float32)
        samples[index] = ShardSample(
            answered(ids[: shape.prompt], ids[shape.prompt :], log_probs, 0, 1.0, "length"), log_probs
        )
        samples[index].advantages = np.full(answer, draw.normal(), np.float32)
    lengths = [len(each.trajectory.token_ids) for each in samples.values()]
    (plan,) = plan_step(lengths, [list(samples)], 1, spec.actor.tokens_per_micro_batch)
    totals = BatchTotals(sum(each.loss_tokens for each in samples.values()), len(samples))
    return Shard(plan, (totals,), samples)


@contextmanager
def head(*, fused: bool) -> Iterator[None]:
    """With the output head of the trainer, or with the plain one."""
    vars(forward)["score_tokens"] = score_tokens if fused else plain_head.score_tokens
    try:
        yield
    finally:
        vars(forward)["score_tokens"] = score_tokens


@contextmanager
def alone(device: torch.device) -> Iterator[None]:
    """A process group of one rank."""
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
