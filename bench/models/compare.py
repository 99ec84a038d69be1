"""One architecture in one engine: engine, trainer and transformers compute the same tokens' log-probabilities.

The trainer's way is that of a job: its checks, its loading, its packing, one update, a sync before it and after it.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from bench.models.architectures import END, VOCAB, config_of
from bench.models.remote import LocalEngine, RemoteEngine
from rljob_api import ResolvedSpec, resolve
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.v1alpha1.rollout import Engine
from rljob_trainer.engines.engine import EngineSettings, Request
from rljob_trainer.errors import DataError, JobError
from rljob_trainer.rank.forward import Policy
from rljob_trainer.rank.loading import empty_model, full_weights
from rljob_trainer.rank.packable import choose_rows
from rljob_trainer.rank.sending import sent_tensors
from rljob_trainer.rank.supported import check_supported, load_config
from rljob_trainer.types import Ids, Sampling, Trajectory, answered
from rljob_trainer.weights.bucket import BucketDescriptor
from rljob_trainer.weights.sender import WeightSender

LONGEST = 96
"""Tokens of a prompt and its answer: several windows, several blocks of a KV cache."""

TOLERANCE = 1e-3
"""Nats, of the largest difference; float32 on a CPU."""

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Result:
    """engine, trainer: largest difference to transformers in nats; None if refused.

    apart: whether the trainer gives each trajectory a row. refused: the message.
    """

    engine: float | None = None
    trainer: float | None = None
    apart: bool = False
    refused: str | None = None

    @property
    def right(self) -> bool:
        """Whether the architecture agrees or is refused."""
        worst = max(self.engine or 0.0, self.trainer or 0.0)
        return self.refused is not None or worst < TOLERANCE


def compare(name: str, kind: Engine, folder: Path) -> Result:
    """The result of an architecture; `folder` is for its files."""
    write_model(name, folder)
    spec = _spec(folder, kind)
    try:
        check_supported(load_config(folder, trust_remote_code=False), spec)
        policy = _policy(spec, folder)
        started = RemoteEngine if kind == "vllm" else LocalEngine
        engine = started(EngineSettings(kind=kind, model_dir=str(folder), max_model_len=LONGEST, max_num_seqs=8))
        with closing(engine):
            found = [_difference(engine, policy, spec, folder, version) for version in (1, 2)]
    except (JobError, DataError) as error:
        return Result(refused=str(error))
    gaps = np.max(found, axis=0)
    return Result(float(gaps[0]), float(gaps[1]), policy.apart)


def write_model(name: str, folder: Path) -> None:
    """Random weights, large enough that every matrix moves the log-probabilities, and a tokenizer."""
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config_of(name))
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(noise * 0.15 if parameter.dim() > 1 else parameter + noise * 0.1)
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({f"t{i} ": i for i in range(VOCAB)}, unk_token="t1 "))
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=f"t{END} ", unk_token="t1 ").save_pretrained(folder)


def _spec(folder: Path, kind: Engine) -> ResolvedSpec:
    written = {
        "model": {"path": str(folder)},
        "data": {"train": ["rows.jsonl"], "maxPromptTokens": LONGEST - 16, "maxResponseTokens": 16},
        "rollout": {"engine": kind},
        "rewards": {"functions": [{"name": "exact", "builtin": "exact_match"}]},
        "training": {"steps": 1},
        "cluster": {"gpusPerNode": 0},
    }
    return resolve(RLJobSpec.model_validate(written))


def _policy(spec: ResolvedSpec, folder: Path) -> Policy:
    policy = Policy(empty_model(folder, spec.model))
    policy.model.load_state_dict(full_weights(folder, spec.model, 0))
    policy.eval()
    choose_rows(policy, LONGEST, _CPU, torch.float32)
    return policy


def _difference(
    engine: LocalEngine, policy: Policy, spec: ResolvedSpec, folder: Path, version: int
) -> tuple[float, float]:
    """Largest differences of engine and trainer to transformers, with the weights of now; then an update."""
    _sync(engine, policy, spec, version)
    trajectories = _sampled(engine)
    theirs = _by_transformers(policy, folder, trajectories)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    log_probs, _ = policy(policy.pack(trajectories, _CPU), entropy_gradient=False)
    (-log_probs.mean()).backward()
    optimizer.step()
    sampled = torch.from_numpy(np.concatenate([each.log_probs[each.in_loss] for each in trajectories]))
    return float((sampled - theirs).abs().max()), float((log_probs.detach() - theirs).abs().max())


def _sync(engine: LocalEngine, policy: Policy, spec: ResolvedSpec, version: int) -> None:
    engine.call("begin_update", version)

    def deliver(bucket: BucketDescriptor) -> Callable[[], None]:
        engine.call("load_bucket", bucket)
        return lambda: None

    tensors = sent_tensors(policy.model, spec, True, _CPU, torch.float32)
    WeightSender("cpu", "float32", 1 << 20).send(tensors, version, deliver)
    engine.call("finish_update", version)
    engine.call("wake")


def _sampled(engine: LocalEngine) -> list[Trajectory]:
    """Answers to short and long prompts, generated together."""
    draw = np.random.default_rng(0)
    prompts: dict[str, Ids] = {
        str(size): draw.integers(2, VOCAB, size).astype(np.int32) for size in (3, 11, 15, 28, 60, LONGEST - 16)
    }
    made = engine.answer([Request(key, ids, Sampling(16), (1, 2)) for key, ids in prompts.items()])
    return [
        answered(prompts[each.request_id], each.token_ids, each.log_probs, 0, 1.0, each.finish_reason) for each in made
    ]


@torch.no_grad()
def _by_transformers(policy: Policy, folder: Path, trajectories: Sequence[Trajectory]) -> torch.Tensor:
    """By one forward pass of transformers for each, with the policy's weights."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    model.load_state_dict(policy.model.state_dict())
    parts = []
    for each in trajectories:
        ids = torch.from_numpy(each.token_ids).long()
        at = torch.from_numpy(np.flatnonzero(each.in_loss))
        log_probs = model(ids[None], use_cache=False).logits[0].float().log_softmax(-1)
        parts.append(log_probs[at - 1].gather(1, ids[at, None])[:, 0])
    return torch.cat(parts)
