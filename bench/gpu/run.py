"""One run of either trainer, in processes of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from bench.gpu.shapes import LONGEST, RATE, SAMPLES, Work
from bench.gpu.watch import Interval, Watch, watching
from rljob_trainer.progress import names
from rljob_trainer.progress.history import read_metrics
from rljob_trainer.workers.trace import VARIABLE

ROOT = Path(__file__).parents[2]

PHASES = ("rollout", "update", "sync", "other")

_CALLS = {"update": ("prepare", "update"), "sync": ("send_weights",)}
"""Calls of our ranks by phase."""


@dataclass(slots=True)
class Run:
    """What one run took.

    steps: seconds of each, in PHASES and whole; "tokens" of its prompts and responses.
    start: seconds from the command to the first rollout. peaks: bytes of the GPU by phase, warm-up included.
    metrics: others of ours, the largest of each. error: the end of its log if it failed.
    """

    steps: list[dict[str, float]] = field(default_factory=list)
    start: float | None = None
    peaks: dict[str, int | None] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    error: str = ""


def ours(work: Work, folder: Path, given: Path, settings: Sequence[str], gpus: int, limit: float) -> Run:
    """given: what work.write wrote. settings: PATH=VALUE of the job. limit: seconds."""
    job, out = folder / "job.yaml", folder / "run"
    job.write_text(yaml.safe_dump(_job(work, given, gpus)))
    command = [sys.executable, "-P", "-m", "rljob_trainer.cli", "run", str(job), "--dir", str(out)]
    command += ["--ranks", str(max(1, gpus)), *(part for each in settings for part in ("--set", each))]
    begin = time.time()
    watch, error = _watched(command, folder, {VARIABLE: str(folder / "trace")}, limit)
    lines = [line for line in read_metrics(out) if names.TIME_STEP in line]
    run = Run([_our_step(line) for line in lines], error=error)
    if lines:
        run.start = lines[0]["time"] - run.steps[0]["seconds"] - begin
        run.peaks = _peaks(watch, lines[0]["time"], _our_intervals(folder / "trace"))
        run.metrics = {
            name: max(line[name] for line in lines if name in line)
            for name in (names.MEMORY_UPDATE, names.SYNC_BYTES, names.SYNC_PROBE_MEAN, names.ROLLOUT_LOG_PROB_DIFF_MEAN)
            if any(name in line for line in lines)
        }
    return run


def _job(work: Work, given: Path, gpus: int) -> dict[str, Any]:
    """Nothing is set that the work does not ask for."""
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "gpu"},
        "spec": {
            "model": {"path": str(given / "model")},
            "data": {
                "train": [str(given / "rows.jsonl")],
                "maxPromptTokens": LONGEST,
                "maxResponseTokens": work.tokens,
                "promptsPerStep": work.prompts,
            },
            "algorithm": {"preset": "grpo", "kl": {"placement": "none"}},
            "rollout": {"engine": "vllm", "samplesPerPrompt": SAMPLES},
            "actor": {"learningRate": RATE},
            "rewards": {"functions": [{"name": "even", "path": str(given / "reward.py")}]},
            "training": {"steps": work.steps},
            "checkpoint": {"everySteps": 0},
            "cluster": {"gpusPerNode": gpus},
        },
    }


def _our_step(line: Mapping[str, Any]) -> dict[str, float]:
    start = line.get(names.TIME_START, 0.0)  # the first rollout waits for it
    parts = {phase: float(line.get(f"time/{phase}", 0.0)) for phase in ("rollout", "update", "sync")}
    parts["rollout"] -= start
    whole = line[names.TIME_STEP] - start
    tokens = line[names.TOKENS_PER_SECOND] * line[names.TIME_STEP]
    return parts | {"other": whole - sum(parts.values()), "seconds": whole, "tokens": tokens}


def _our_intervals(trace: Path) -> dict[str, list[Interval]]:
    calls = [call for file in trace.glob("*.jsonl") for call in map(json.loads, file.read_text().splitlines())]
    return {
        phase: [(call["start"], call["end"]) for call in calls if call["call"] in wanted]
        for phase, wanted in _CALLS.items()
    }


def trl(work: Work, folder: Path, given: Path, settings: Sequence[str], limit: float) -> Run:
    """settings: options of trl_steps.py, such as samples-per-pass=16."""
    out = folder / "steps.jsonl"
    options = [f"--{each}" for each in settings]
    shown = ["--tokens", str(work.tokens), "--prompts", str(work.prompts), "--steps", str(work.steps)]
    command = [sys.executable, "-m", "bench.gpu.trl_steps", str(given), str(out), *shown, *options]
    begin = time.time()
    watch, error = _watched(command, folder, {}, limit)
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    run = Run([_trl_step(line) for line in lines], error=error)
    if lines:
        run.start = lines[0]["start"] - begin
        spans = {
            phase: [(start, end) for line in lines for name, start, end in line["spans"] if name == phase]
            for phase in ("sync", "rollout")
        }
        run.peaks = _peaks(watch, lines[0]["end"], spans | {"update": [(line["asked"], line["end"]) for line in lines]})
    return run


def _trl_step(line: Mapping[str, Any]) -> dict[str, float]:
    """The update is what comes after the samples are there; TRL's own old log-probabilities count as other."""
    seconds = line["end"] - line["start"]
    parts = {"update": line["end"] - line["asked"]} | {
        phase: sum(end - start for name, start, end in line["spans"] if name == phase) for phase in ("rollout", "sync")
    }
    return parts | {"other": seconds - sum(parts.values()), "seconds": seconds, "tokens": line["tokens"]}


def _peaks(watch: Watch, warm: float, spans: Mapping[str, list[Interval]]) -> dict[str, int | None]:
    """Of each phase after the first step, which ended at `warm`; for ours the rollout is what is left."""
    later = {phase: [each for each in found if each[0] > warm] for phase, found in spans.items()}
    if "rollout" not in later:
        edges = sorted(each for found in later.values() for each in found)
        later["rollout"] = [(end, start) for (_, end), (start, _) in pairwise(edges) if start > end]
    return {phase: watch.peak(found) for phase, found in later.items()}


def _watched(command: Sequence[str], folder: Path, variables: Mapping[str, str], limit: float) -> tuple[Watch, str]:
    """Run to the end or the limit. Returns the end of the log if it failed."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": path, **variables}
    log = folder / "log"
    with watching() as watch, log.open("wb") as output:
        process = subprocess.Popen(
            ["timeout", "-k", "5", str(int(limit)), *command], stdout=output, stderr=output, env=environment
        )
        code = process.wait()
    return watch, f"exit code {code}: {log.read_text(errors='replace')[-3000:]}" if code else ""
