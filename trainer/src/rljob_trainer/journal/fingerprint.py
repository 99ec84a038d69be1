"""Names of policies and of settings, by content: equal names mean equal origins, in every process and attempt.

digest of version 0    = H(job uid, nonce of the attempt that began the run, update fingerprint, seed of the weights)
digest of version v+1  = H(digest of version v, update fingerprint, digests of what the update used, in order)

The same updates from the same checkpoint with the same groups give the same digest.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rljob_api import ResolvedSpec
from rljob_trainer.errors import blamed
from rljob_trainer.lora.base import fingerprint
from rljob_trainer.paths import locate

# What changes speed and memory alone; a field that is not named here counts.
_ROLLOUT_SPEED = {
    "tensor_parallel_size",
    "engines_per_gpu",
    "gpu_memory_utilization",
    "max_num_seqs",
    "enforce_eager",
    "deadline",
    "validation",
    "weight_sync",
}
_ACTOR_SPEED = {"tokens_per_micro_batch", "recompute", "compile", "fsdp"}
_TEACHER_SPEED = {"timeout", "lost_after", "concurrency"}
_ALGORITHM_SPEED: Any = {"teacher": {"server": _TEACHER_SPEED}}
_MODEL_SPEED = {"timeout", "lost_after", "replicas", "gpus_per_replica", "cpu", "memory", "template"}
_ENVIRONMENT_SPEED = {"processes", "python", "timeout", "deadline"}
_REWARDS_SPEED: Any = {"processes": True, "models": {"__all__": _MODEL_SPEED}}


def content_hash(*parts: str | bytes) -> str:
    """32 hexadecimal digits that depend on each part and on where one ends and the next begins."""
    hashed = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hashed.update(len(data).to_bytes(8, "little"))
        hashed.update(data)
    return hashed.hexdigest()


def first_digest(job_uid: str, nonce: str, fingerprint: str, seed: int) -> str:
    """Digest of the policy before its first update.

    nonce: of the attempt that began the run. fingerprint: update_fingerprint's, with the model. seed: of weights.
    """
    return content_hash("first", job_uid, nonce, fingerprint, str(seed))


def next_digest(digest: str, fingerprint: str, used: Sequence[str]) -> str:
    """Digest of the policy after an update of the policy `digest`.

    fingerprint: update_fingerprint of the spec. used: digests of the groups, or names of the rows, in order.
    """
    return content_hash("next", digest, fingerprint, *used)


def update_fingerprint(spec: ResolvedSpec, base_dir: Path) -> str:
    """Everything that decides what an update makes of its samples.

    base_dir: where relative paths start; the content of files with an advantage or a loss counts, and of the teacher's.
    """
    actor = spec.actor.model_dump(mode="json", exclude=_ACTOR_SPEED)
    decay_steps = None if spec.actor.lr_schedule == "constant" else _length(spec)
    sft = spec.sft.model_dump(mode="json") if spec.sft else None
    spikes = spec.training.on_bad_gradient.spike_factor
    algorithm = spec.algorithm.model_dump(mode="json", exclude=_ALGORITHM_SPEED)
    settings = _json(_dump(spec.model), algorithm, actor, decay_steps, sft, spikes, _critic(spec))
    own = [each for each in (spec.algorithm.advantage_from, spec.algorithm.loss_from) if each is not None]
    return content_hash(
        "update", settings, *(_source(each.path, each.module, base_dir) for each in own), _teacher(spec, base_dir)
    )


def _teacher(spec: ResolvedSpec, base_dir: Path) -> str:
    """Of the files of a teacher that is a folder. A missing one is for the loader to name."""
    teacher = spec.algorithm.teacher
    folder = locate(teacher.path, base_dir) if teacher is not None and teacher.path is not None else None
    if folder is None or not (folder / "config.json").is_file():
        return ""
    with blamed("spec.algorithm.teacher.path"):
        return fingerprint(folder)


def _critic(spec: ResolvedSpec) -> Any:
    if spec.critic is None:
        return None
    return _dump(spec.critic), None if spec.critic.lr_schedule == "constant" else _length(spec)


def _length(spec: ResolvedSpec) -> Any:
    """What decides the number of steps, besides the data."""
    training = spec.training
    return training.steps if training.epochs is None else (training.steps, training.epochs, spec.data.prompts_per_step)


def rollout_fingerprint(spec: ResolvedSpec, base_dir: Path) -> str:
    """Everything but prompts and policy that decides what is generated and how it is scored.

    base_dir: where relative paths of reward files start; the content of those files counts.
    """
    rollout = spec.rollout.model_dump(mode="json", exclude=_ROLLOUT_SPEED)
    rewards = spec.rewards.model_dump(mode="json", exclude=_REWARDS_SPEED)
    sources = [_source(function.path, function.module, base_dir) for function in spec.rewards.functions]
    settings = _json(_dump(spec.model), spec.data.max_response_tokens, rollout, rewards)
    return content_hash("rollout", settings, *sources, *_environment(spec, base_dir), *_taught(spec))


def _taught(spec: ResolvedSpec) -> list[str]:
    """What decides the answers of a teacher's server, which are part of what was rolled out."""
    teacher = spec.algorithm.teacher
    if teacher is None or teacher.server is None:
        return []
    return [_json(teacher.server.model_dump(mode="json", exclude=_TEACHER_SPEED), teacher.top_k)]


def _environment(spec: ResolvedSpec, base_dir: Path) -> list[str | bytes]:
    """What of spec.environment decides an episode."""
    environment = spec.environment
    if environment is None:
        return []
    settings = environment.model_dump(mode="json", exclude=_ENVIRONMENT_SPEED)
    programs = [*environment.command, *(part for server in environment.mcp_servers for part in server.command)]
    return [
        _json(settings, spec.longest_sample, spec.data.template_arguments),
        _source(environment.path, environment.module, base_dir),
        *(_source(part, None, base_dir) for part in programs if not Path(part).is_absolute()),
        *(_source(tool.corpus, None, base_dir) for tool in environment.builtin_tools),
    ]


def step_fingerprint(spec: ResolvedSpec, update: str, rollout: str) -> str:
    """Everything but data and policy that decides which groups a step uses.

    update, rollout: update_fingerprint and rollout_fingerprint of the spec.
    """
    return content_hash("step", update, rollout, str(spec.data.prompts_per_step))


def _source(path: str | None, module: str | None, base_dir: Path) -> bytes:
    """The file of the user's code that lies beside the job. A missing one is for the loader to name."""
    candidates = [locate(path, base_dir)] if path else []
    if module:
        place = base_dir.joinpath(*module.split("."))
        candidates = [place.with_name(f"{place.name}.py"), place / "__init__.py"]
    return next((path.read_bytes() for path in candidates if path.is_file()), b"")


def _dump(block: Any) -> Any:
    return block.model_dump(mode="json")


def _json(*values: Any) -> str:
    return json.dumps(values, sort_keys=True)
