"""What faults cost on several GPUs, and whether a run continues on another number of them.

    python -m bench.recovery_ranks [--ranks 2] [--tiny] [--dir DIR] [--out docs/benchmarks]

Stages in one folder: FSDP on all ranks with a rank, an engine and the driver killed; then one rank; then all again,
each with a whole copy of the policy (HSDP). It writes recovery_ranks.md. `--tiny` tries this script on a CPU.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from bench.recovery_page import write_part
from e2e.chaos.faults import Fault
from e2e.chaos.trial import Trial, disturbed, write_job
from rljob_api.markdown import table
from rljob_trainer.progress import names
from rljob_trainer.progress.history import Line, read_metrics

ROOT = Path(__file__).parent.parent

EVERY = 5
"""Steps from checkpoint to checkpoint."""

FAULTS = (
    (11, Fault("rank", "SIGKILL", "update")),
    (16, Fault("engine", "SIGKILL", "rollout")),
    (21, Fault("driver", "SIGKILL", "update")),
)
"""After which step to strike, and what."""

LARGE: dict[str, Any] = {
    "model": {"fromScratch": {"layers": 24, "hiddenSize": 1024, "heads": 16}},
    "data": {"promptsPerStep": 64, "maxResponseTokens": 32},
    "rollout": {"engine": "hf", "samplesPerPrompt": 8},
}
"""300 million parameters. Engine hf starts in seconds, so times are of the recovery and not of vLLM's start."""

TINY: dict[str, Any] = {
    "model": {"fromScratch": {"layers": 2, "hiddenSize": 64, "heads": 2}},
    "data": {"promptsPerStep": 8, "maxResponseTokens": 12},
    "rollout": {"engine": "hf", "samplesPerPrompt": 4},
}


@dataclass(frozen=True, slots=True)
class Stage:
    """name: of a row. steps: at which it ends. alone: on one rank. replicas: whole copies of the policy."""

    name: str
    steps: int
    alone: bool = False
    replicas: int = 1


def stages(ranks: int) -> list[Stage]:
    return [
        Stage(f"FSDP over {ranks} ranks", 26),
        Stage("1 rank", 32, alone=True),
        Stage(f"{ranks} copies on {ranks} ranks", 38, replicas=ranks),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="of the first stage and the last")
    parser.add_argument("--tiny", action="store_true", help="a tiny model on a CPU")
    parser.add_argument("--dir", type=Path, help="the run's folder; the default is a temporary one")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks")
    options = parser.parse_args()
    directory = (options.dir or Path(tempfile.mkdtemp(prefix="rljob-ranks-")) / "run").resolve()
    first, *others = stages(options.ranks)
    struck = _run(directory, first, options, _when_due(directory))
    rows = [_row(first, directory, 0)]
    for before, stage in zip([first, *others], others, strict=False):
        _run(directory, stage, options, iter(()))
        rows.append(_row(stage, directory, before.steps))
    write_part(options.out, "recovery_ranks.md", _page(struck, rows, options))


def _run(directory: Path, stage: Stage, options: argparse.Namespace, faults: Iterator[Fault]) -> Trial:
    """Exits with the run's output if it did not reach the stage's last step."""
    ranks = 1 if stage.alone else options.ranks
    cluster = {"gpusPerNode": 0, "ranksPerNode": ranks} if options.tiny else {"gpusPerNode": ranks}
    job = write_job(directory.with_name("job.yaml"), _document(stage, TINY if options.tiny else LARGE, cluster))
    trial = disturbed(job, directory, faults, random.Random(1), _say, ranks=ranks)
    _say(f"{stage.name}: exit code {trial.code}")
    if trial.code != 0:
        raise SystemExit(trial.output)
    return trial


def _document(stage: Stage, sizes: dict[str, Any], cluster: dict[str, int]) -> dict[str, Any]:
    task = {"train": ["synthetic://reverse-text?rows=4096&letters=7&maxLength=4"], "maxPromptTokens": 16}
    reward = {"name": "letters", "builtin": "similarity", "arguments": {"method": "positions"}}
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "ranks"},
        "spec": {
            **sizes,
            "data": sizes["data"] | task,
            "actor": {"learningRate": 1e-5, "fsdp": {"replicas": stage.replicas}},
            "algorithm": {"preset": "grpo", "kl": {"placement": "none"}},
            "rewards": {"functions": [reward]},
            "training": {"steps": stage.steps},
            "checkpoint": {"everySteps": EVERY},
            "cluster": cluster,
        },
    }


def _when_due(directory: Path) -> Iterator[Fault]:
    for after, fault in FAULTS:
        while not any(line["step"] >= after for line in read_metrics(directory)):
            time.sleep(0.05)
        _say(f"step {after} is done: {fault}")
        yield fault


def _row(stage: Stage, directory: Path, before: int) -> list[str]:
    lines: list[Line] = [line for line in read_metrics(directory) if names.TIME_STEP in line and line["step"] > before]
    return [
        stage.name,
        f"{before + 1} to {lines[-1]['step']}",
        f"{median(line[names.TIME_STEP] for line in lines):.2f}",
        f"{max(line[names.SYNC_PROBE_MEAN] for line in lines if names.SYNC_PROBE_MEAN in line):.2g}",
        f"{mean(line[names.REWARD_MEAN] for line in lines):.3f}",
    ]


def _page(trial: Trial, rows: list[list[str]], options: argparse.Namespace) -> str:
    device = "CPUs" if options.tiny else f"{options.ranks} x {torch.cuda.get_device_name()}"
    struck = [
        [f"{each.fault.kind}, {each.fault.phase}", str(each.step), f"{each.next_update:.1f}", f"{each.next_step:.1f}",
         str(each.repeated)]
        for each in trial.struck
    ]  # fmt: skip
    intro = (
        f"{device}, torch {torch.__version__}, `python -m bench.recovery_ranks --ranks {options.ranks}`: a model from"
        f" scratch, engine hf, checkpoints every {EVERY} steps. The stages share one folder, so each continues where"
        " the one before ended, on another number of ranks. SIGKILL; times start there and end with a whole step."
    )
    head = ("killed", "after step", "s to the next update", "s to the next new step", "repeated")
    stage_head = ("stage", "steps", "s a step, median", "largest probe, nats", "mean reward")
    tables = table(head, struck).strip(), table(stage_head, rows).strip()
    return "\n\n".join(["# Recovery on several GPUs", intro, *tables])


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    main()
