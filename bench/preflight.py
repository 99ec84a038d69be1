"""The fabric preflight on all GPUs of this machine, beside torch's own NCCL in the same run; without GPUs, gloo.

    python -m bench.preflight [--ranks N] [--seconds 60] [--out docs/benchmarks]

Needs torch, psutil, and cupy on GPUs; neither Ray nor vLLM. Writes preflight.md.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rljob_trainer.local.machine import visible_gpus
from rljob_trainer.preflight.bandwidth import Operation, Speed
from rljob_trainer.preflight.check import CPU_LIMITS, GPU_LIMITS, Limits
from rljob_trainer.preflight.local import measure_here
from rljob_trainer.preflight.measured import Library, Measured, Row
from rljob_trainer.preflight.rounds import MIB, Shape
from rljob_trainer.preflight.table import lines

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Run:
    """total: seconds from the start of the processes to the last answer."""

    measured: Measured
    total: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, help="processes; the default is the GPUs present, else 2")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for each measurement")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks")
    options = parser.parse_args()
    gpus = visible_gpus()
    shape = Shape(1, options.ranks or len(gpus) or 2)
    options.out.mkdir(parents=True, exist_ok=True)
    limits = replace(GPU_LIMITS if gpus else CPU_LIMITS, seconds=options.seconds, folder=str(options.out))
    libraries: Sequence[Library] = ("cupy", "torch") if gpus else ("torch",)
    runs = [_run(shape, gpus[: shape.ranks], library, limits) for library in libraries]
    (options.out / "preflight.md").write_text(page(runs, shape))
    print(f"wrote {options.out / 'preflight.md'}")


def _run(shape: Shape, gpus: Sequence[str], library: Library, limits: Limits) -> Run:
    begin = time.monotonic()
    measured = measure_here(shape, gpus, limits, library)
    print(*lines(measured, shape), "", sep="\n", flush=True)
    return Run(measured, time.monotonic() - begin)


def page(runs: Sequence[Run], shape: Shape) -> str:
    """The page as Markdown."""
    first = runs[0].measured
    return "\n".join(
        [
            "# Fabric preflight",
            "",
            f"{shape.ranks} x {_device(first)} of one machine, a process each; written by `python -m bench.preflight`.",
            "Times and bandwidths as in nccl-tests (float32, sum; every element compared); GB/s.",
            "",
            *_collectives(runs),
            "",
            *_pairs(runs),
            "",
            *(
                f"{run.measured.places[0].library}: {run.measured.seconds:.1f} s, with the start of the processes"
                f" {run.total:.1f} s."
                for run in runs
            ),
            "",
            "The whole output:",
            "",
            *(line for run in runs for line in ("```", *lines(run.measured, shape), "```", "")),
        ]
    )


def _device(measured: Measured) -> str:
    gpu = measured.places[0].gpu
    return "CPU process" if gpu is None else gpu.partition(" GPU-")[0]


def _collectives(runs: Sequence[Run]) -> list[str]:
    """Bus bandwidth of each run side by side."""
    rows = [{(row.operation, row.nbytes): row for row in run.measured.rows} for run in runs]
    head = [f"{run.measured.places[0].library}: {form}" for run in runs for form in ("out of place", "in place")]
    body = [
        [
            str(operation), f"{nbytes / MIB:g}",
            *(cell for each in rows for cell in _cells(each, (operation, nbytes))),
        ]
        for operation, nbytes in sorted(rows[0], key=lambda key: (key[0], key[1]))
    ]  # fmt: skip
    return _table(["operation", "MiB", *head], body)


def _cells(rows: Mapping[tuple[Operation, int], Row], key: tuple[Operation, int]) -> list[str]:
    row = rows.get(key)
    return ["", ""] if row is None else [_bus(row.out_of_place), _bus(row.in_place)]


def _bus(speed: Speed | None) -> str:
    if speed is None:
        return ""
    return f"{speed.bus:.1f}" + (f" ({speed.wrong} wrong)" if speed.wrong else "")


def _pairs(runs: Sequence[Run]) -> list[str]:
    speeds = [{pair.ranks: pair for pair in run.measured.pairs} for run in runs]
    body = [
        [f"{ranks[0]} - {ranks[1]}", *(f"{each[ranks].bus:.1f}" if ranks in each else "" for each in speeds)]
        for ranks in speeds[0]
    ]
    head = f"ranks, {runs[0].measured.pair_bytes / MIB:g} MiB in each direction"
    return _table([head, *(run.measured.places[0].library for run in runs)], body)


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)]


if __name__ == "__main__":
    main()
