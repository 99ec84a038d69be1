"""What checkpoints and faults cost on one GPU, with the shape of a 1.5B model.

    python -m bench.recovery_gpu [--tiny] [--seconds 600] [--dir DIR] [--out docs/benchmarks]

One run: undisturbed for five checkpoints' time, then killed at PLAN's places. It writes recovery_gpu.md. `--tiny` is
the same on a CPU, to try this script itself.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import distributions
from pathlib import Path
from statistics import mean, median, stdev
from threading import Timer
from typing import Any

import psutil
import torch

from bench.recovery_page import write_part
from e2e.chaos.faults import Fault
from e2e.chaos.trial import Struck, Trial, disturbed, write_job
from rljob_trainer.progress import names
from rljob_trainer.progress.history import Line, parse_lines, read_metrics
from rljob_trainer.volume import Volume

ROOT = Path(__file__).parent.parent

EVERY = 6
"""Steps from checkpoint to checkpoint."""

UNDISTURBED = 5 * EVERY
"""Steps before the first fault."""

WARM_UP = 3
"""Steps left out of the times: kernels are compiled and memory is got in them."""

PLAN = (
    (UNDISTURBED, Fault("driver", "SIGKILL", "saving")),
    (UNDISTURBED + 2, Fault("driver", "SIGKILL", "update")),
    (UNDISTURBED + 4, Fault("engine", "SIGKILL", "rollout")),
    (UNDISTURBED + 6, Fault("rank", "SIGKILL", "update")),
)
"""After which step to strike, and what."""

DRIVER_GOAL = 30.0
"""Seconds from a driver's death to the next update's end."""

STEPS = UNDISTURBED + 8

PACKAGES = ("torch", "vllm", "ray", "transformers")

LARGE: dict[str, Any] = {
    "model": {
        "fromScratch": {
            "layers": 28, "hiddenSize": 1536, "heads": 12, "kvHeads": 2, "intermediateSize": 8960,
            "tokenizer": {"kind": "bpe", "vocabSize": 4096},
        }
    },
    "data": {"promptsPerStep": 64, "maxResponseTokens": 128},
    "rollout": {"engine": "vllm", "samplesPerPrompt": 8, "maxNumSeqs": 512, "gpuMemoryUtilization": 0.25},
    "actor": {"miniBatchSize": 32},
    "cluster": {"gpusPerNode": 1},
}  # fmt: skip
"""The shape of a 1.5B model but for its vocabulary of 4096 tokens, one of which ends a response: with random weights
nearly all responses have the full length."""

TINY: dict[str, Any] = {
    "model": {"fromScratch": {"layers": 2, "hiddenSize": 512, "heads": 8}},
    "data": {"promptsPerStep": 8, "maxResponseTokens": 12},
    "rollout": {"engine": "hf", "samplesPerPrompt": 8},
    "actor": {"miniBatchSize": 4},
    "cluster": {"gpusPerNode": 0},
}


def document(sizes: dict[str, Any]) -> dict[str, Any]:
    """The RLJob."""
    task = {"train": ["synthetic://reverse-text?rows=2048&letters=26&maxLength=8"], "maxPromptTokens": 16}
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "recovery-gpu"},
        "spec": {
            **sizes,
            "data": sizes["data"] | task,
            "algorithm": {"preset": "grpo", "kl": {"placement": "none"}},
            "rewards": {
                "functions": [{"name": "letters", "builtin": "similarity", "arguments": {"method": "positions"}}]
            },
            "training": {"steps": STEPS},
            "checkpoint": {"everySteps": EVERY, "keepLast": 1},
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a tiny model on a CPU")
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="after which the run is ended; the page says what is known"
    )
    parser.add_argument("--dir", type=Path, help="the run's folder; the default is a temporary one")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks")
    options = parser.parse_args()
    directory = (options.dir or Path(tempfile.mkdtemp(prefix="rljob-recovery-")) / "run").resolve()
    job = write_job(directory.with_name("job.yaml"), document(TINY if options.tiny else LARGE))
    limit = Timer(options.seconds, end_run)
    limit.start()
    trial = disturbed(job, directory, when_due(directory), random.Random(1), say)
    limit.cancel()
    if not Volume(directory).metrics(1).exists():
        raise SystemExit(trial.output)
    options.out.mkdir(parents=True, exist_ok=True)
    write_part(options.out, "recovery_gpu.md", page(trial))
    say(f"`rljob run` ended with {trial.code}; wrote {options.out / 'recovery_gpu.md'}")


def when_due(directory: Path) -> Iterator[Fault]:
    """PLAN's faults, each once its step is done; none after the run's end."""
    for after, fault in PLAN:
        while not any(line["step"] >= after for line in read_metrics(directory)):
            if not runs():
                return
            time.sleep(0.05)
        say(f"step {after} is done: {fault}")
        yield fault


def runs() -> list[psutil.Process]:
    """Our `rljob run`, while it lives."""
    return [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]


def end_run() -> None:
    """Its own processes end with it."""
    say("time is up")
    for process in runs():
        process.kill()


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


# ---------------------------------------------------------------------- what checkpoints cost


@dataclass(frozen=True, slots=True)
class Save:
    """One checkpoint of the undisturbed part. Times in unix seconds.

    first: the step right after it, which waits until it has begun and, in its update, until the state is copied.
    others: the later steps during which it was written.
    """

    step: int
    begun: float
    durable: float
    first: Line
    others: list[Line]


def undisturbed_steps(volume: Volume) -> list[Line]:
    """The first attempt's, after the warm-up: the first fault ends it."""
    path = volume.metrics(1)
    lines = parse_lines(path.read_text()) if path.exists() else ()
    return [line for line in lines if names.TIME_STEP in line and line["step"] > WARM_UP]


def saves(volume: Volume, steps: Sequence[Line]) -> list[Save]:
    """Those that became durable while nothing was disturbed."""
    found = []
    for event in _events(volume, "checkpoint_saved"):
        before = [line for line in steps if line["step"] == event["step"]]
        if before:
            begun, durable = before[0]["time"], datetime.fromisoformat(event["timestamp"]).timestamp()
            beside = [line for line in steps if begun < line["time"] and line["time"] - line[names.TIME_STEP] < durable]
            if beside:
                found.append(Save(event["step"], begun, durable, beside[0], beside[1:]))
    return found


def checkpoint_part(volume: Volume) -> list[str]:
    steps = undisturbed_steps(volume)
    found = saves(volume, steps)
    beside = {line["step"] for each in found for line in [each.first, *each.others]}
    last = max((line["step"] for line in steps), default=0)
    quiet = [line for line in steps if line["step"] not in beside and line["step"] <= last - last % EVERY]
    if not found or not quiet:
        return ["No checkpoint became durable while the run was undisturbed."]
    usual = median(line[names.TIME_STEP] for line in quiet)
    spread = [100 * (line[names.TIME_STEP] / usual - 1) for line in quiet]
    rows = [_save_row(each, usual) for each in found]
    intro = (
        f"{len(quiet)} steps without a checkpoint took {usual:.2f} s in the median, between {min(spread):+.1f} % and "
        f"{max(spread):+.1f} % of that. Goal: training waits for a checkpoint for less than 2 % of a step."
    )
    return [
        intro,
        "",
        *_table(("after step", "`begin` blocks, s", "next step against the median", "steps beside it",
                 "their mean against the median", "durable after, s"), rows),
        "",
        _cost_of_saves(found, usual),
        "",
        *_table(("phase, s", "median without", "step after a checkpoint", "other steps beside it"),
                _phases(quiet, [each.first for each in found], [line for each in found for line in each.others])),
    ]  # fmt: skip


def _cost_of_saves(found: Sequence[Save], usual: float) -> str:
    """The mean over all steps beside a checkpoint: from one step to the next they differ by more than it costs."""
    beside = [line[names.TIME_STEP] for save in found for line in [save.first, *save.others]]
    error = stdev(beside) / len(beside) ** 0.5 if len(beside) > 1 else 0.0
    return (
        f"Over all {len(beside)} steps beside a checkpoint: {100 * (mean(beside) / usual - 1):+.1f} % in the mean, with"
        f" a standard error of {100 * error / usual:.1f} %."
    )


def _save_row(save: Save, usual: float) -> list[str]:
    beside = [line[names.TIME_STEP] for line in [save.first, *save.others]]
    return [
        str(save.step),
        f"{save.first.get(names.TIME_CHECKPOINT, 0.0):.3f}",
        f"{100 * (beside[0] / usual - 1):+.1f} %",
        str(len(beside)),
        f"{100 * (mean(beside) / usual - 1):+.1f} %",
        f"{save.durable - save.begun:.1f}",
    ]


def _phases(*columns: Sequence[Line]) -> list[list[str]]:
    rows = []
    for name in [*names.PHASE_TIMES, names.TIME_STEP]:
        values = [[line[name] for line in column if name in line] for column in columns]
        if any(values):
            rows.append([names.short(name), *(f"{median(each):.3f}" if each else "" for each in values)])
    return rows


# ---------------------------------------------------------------------- what faults cost


def fault_part(struck: Sequence[Struck]) -> list[str]:
    rows = [
        [f"{each.fault.kind}, {each.fault.phase}", str(each.step), f"{each.next_update:.1f}", f"{each.next_step:.1f}",
         str(each.repeated), str(each.journaled)]
        for each in struck
    ]  # fmt: skip
    head = ("killed", "after step", "s to the next update's end", "s to the next new step's end", "repeated updates",
            "journaled groups")  # fmt: skip
    deaths = [each.next_update < DRIVER_GOAL for each in struck if each.fault.kind == "driver"]
    intro = (
        "SIGKILL; times start there and end with a whole step, so they hold the recovery and the rest of a step. "
        f"Goal: less than {DRIVER_GOAL:g} s after the driver's death; met by {sum(deaths)} of {len(deaths)}."
    )
    return [
        intro,
        "",
        *_table(head, rows),
    ]


# ---------------------------------------------------------------------- the page


def page(trial: Trial) -> str:
    volume = Volume(trial.directory)
    versions = {each.name: each.version for each in distributions()}
    packages = ", ".join(f"{name} {versions[name]}" for name in PACKAGES if name in versions)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
    lines = read_metrics(trial.directory)
    reached = max((line["step"] for line in lines), default=0)
    intro = (
        f"{device}; {packages}. One run, written by `python -m bench.recovery_gpu`; it reached step {reached} of "
        f"{STEPS} and exit code {trial.code}. A model from scratch with {_parameters(volume):,} parameters, fp32 "
        f"with AdamW, checkpoints of {_bytes(volume) / 1e9:.1f} GB every {EVERY} steps. The first {WARM_UP} steps "
        "do not count."
    )
    return "\n".join(
        [
            "# Recovery on one GPU",
            "",
            intro,
            "",
            "## Checkpoints",
            "",
            *checkpoint_part(volume),
            "",
            "## Faults",
            "",
            *fault_part(trial.struck),
            "",
        ]
    )


def _events(volume: Volume, name: str) -> list[dict[str, Any]]:
    """Of the first attempt's log."""
    text = volume.log(1).read_text() if volume.log(1).exists() else ""
    return [event for event in map(json.loads, text.splitlines()) if event.get("event") == name]


def _parameters(volume: Volume) -> int:
    return sum(event["parameters"] for event in _events(volume, "model_loaded"))


def _bytes(volume: Volume) -> int:
    return max((event["bytes"] for event in _events(volume, "checkpoint_saved")), default=0)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [" | ".join(head), " | ".join("---" for _ in head), *(" | ".join(row) for row in rows)]


if __name__ == "__main__":
    main()
