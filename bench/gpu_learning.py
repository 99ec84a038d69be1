"""The example job on GPUs: trainer and vLLM share each, weights cross over CUDA IPC, every sync is probed.

    python -m bench.gpu_learning [--gpus 1 2] [--steps 100] [--set PATH=VALUE ...] [--out docs/benchmarks]

Trains examples/reverse-text/rljob.yaml and writes gpu_learning.md and gpu_learning.png.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median

import torch

from rljob_trainer.progress import names
from rljob_trainer.progress.history import Line, read_metrics
from rljob_trainer.progress.plot import draw, load_runs, save

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "reverse-text" / "rljob.yaml"
WARM_UP = 3
"""RL steps left out of the times: kernels are compiled in them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1], metavar="N", help="a run on each number of GPUs")
    parser.add_argument("--steps", type=int, default=100, help="RL steps")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks")
    options = parser.parse_args()
    shared = ("rollout.engine=vllm", f"training.steps={options.steps}", *options.overrides)
    parent = Path(tempfile.mkdtemp(prefix="rljob-gpu-"))
    runs: dict[int, Path] = {}
    for gpus in options.gpus:
        runs[gpus] = parent / f"{gpus} GPU{'s' * (gpus > 1)}"
        overrides = (*shared, f"cluster.gpusPerNode={gpus}")
        where = ["--dir", str(runs[gpus]), "--ranks", str(gpus)]  # else it takes all GPUs that are here
        command = [sys.executable, "-m", "rljob_trainer.cli", "run", str(EXAMPLE), *where]
        subprocess.run([*command, *(part for each in overrides for part in ("--set", each))], check=True)
    options.out.mkdir(parents=True, exist_ok=True)
    save(draw(load_runs(list(runs.values()))), options.out / "gpu_learning.png")
    (options.out / "gpu_learning.md").write_text(page({gpus: read_metrics(run) for gpus, run in runs.items()}, shared))
    print(f"wrote {options.out / 'gpu.md'}")


def page(runs: Mapping[int, Sequence[Line]], overrides: Sequence[str]) -> str:
    """The page as Markdown. runs: by their number of GPUs, the metrics of every step."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "vllm", "ray", "transformers"))
    command = " ".join(["--ranks N", *(f"--set {each}" for each in (*overrides, "cluster.gpusPerNode=N"))])
    return "\n".join(
        [
            "# Learning on GPUs",
            "",
            f"`rljob run {EXAMPLE.relative_to(ROOT)} {command}`",
            "",
            f"{torch.cuda.get_device_name()}; {packages}. One run for each number of GPUs, written by",
            f"`python -m bench.gpu_learning --gpus {' '.join(map(str, runs))}`.",
            "FSDP2 trainer and rollout engine share each GPU, gradients cross over NCCL and weights over CUDA IPC, and",
            "after every sync the engines' log-probabilities of fixed prompts are compared with the trainer's.",
            "",
            "![curves](gpu_learning.png)",
            "",
            *(line for gpus, lines in runs.items() for line in _section(gpus, lines)),
        ]
    )


def _section(gpus: int, lines: Sequence[Line]) -> list[str]:
    steps = [line for line in lines if line["stage"] == "rl" and names.TIME_STEP in line]
    validations = [line for line in lines if names.VALIDATION_REWARD in line]
    return [
        f"## {gpus} GPU{'s' * (gpus > 1)}",
        "",
        *_table("learning", ("step", "validation reward (greedy)"), _validations(validations)),
        *_table(f"seconds of a step, {len(steps) - WARM_UP} steps after {WARM_UP} of warm-up",
                ("phase", "median", "largest"), _phases(steps[WARM_UP:])),
        *_table("engine against trainer, log-probabilities in nats", ("", "mean", "largest"), _differences(steps)),
    ]  # fmt: skip


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    body = [" | ".join(row) for row in rows]
    return [f"### {title.capitalize()}", "", " | ".join(head), " | ".join("---" for _ in head), *body, ""]


def _validations(lines: Sequence[Line]) -> list[list[str]]:
    return [[str(line["step"]), f"{line[names.VALIDATION_REWARD]:.3f}"] for line in lines]


def _phases(steps: Sequence[Line]) -> list[list[str]]:
    phases = [*names.PHASE_TIMES, names.TIME_STEP]
    values = {name: [step[name] for step in steps if name in step] for name in phases}
    rows = [[names.short(name), f"{median(each):.3f}", f"{max(each):.3f}"] for name, each in values.items() if each]
    speed = [step[names.TOKENS_PER_SECOND] for step in steps]
    return [*rows, ["tokens/s", f"{median(speed):.0f}", f"{max(speed):.0f}"]]


def _differences(steps: Sequence[Line]) -> list[list[str]]:
    pairs = [
        ("the probe's tokens, after each sync", names.SYNC_PROBE_MEAN, names.SYNC_PROBE_MAX),
        ("the step's samples", names.ROLLOUT_LOG_PROB_DIFF_MEAN, names.ROLLOUT_LOG_PROB_DIFF_MAX),
    ]
    return [
        [label, f"{median(step[mean] for step in steps):.2g}", f"{max(step[most] for step in steps):.2g}"]
        for label, mean, most in pairs
    ]


if __name__ == "__main__":
    main()
