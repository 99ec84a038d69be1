"""Time the update alone, variant by variant, after a check that all of them compute the same.

    python -m bench.update [--tiny] [--shapes 0.5B 1.5B] [--deadline SECONDS] [--profile FOLDER] [--out FILE]

One JSON with the results; lines are printed as they come. MFU counts 6 x parameters x tokens (embeddings included, no
recomputation) over the bfloat16 peak of an H100 or H200, 989 TFLOP/s.
"""

import argparse
import gc
import json
import statistics
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import transformers

from bench.update.checks import run_checks
from bench.update.trained import SHAPES, Trained, Variant, alone, head, spec_of
from rljob_trainer.rank.compiling import compiled_graphs

PEAK = 989e12
"""FLOP/s in bfloat16, dense."""

WARM_UP, UPDATES = 2, 3

BEST = Variant()
VARIANTS = (
    BEST,
    Variant(compile=False, recompute="layer"),
    Variant(compile=False),
    Variant(recompute="layer"),
    Variant(fused_head=False),
    Variant(reshard=False),
    Variant(recompute="offload"),
    Variant(offload="optimizer"),
    Variant(offload="parameters"),
    Variant(offload="all"),
)
"""Those that matter most come first: the deadline may cut off the rest."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a tiny shape, to try this on a CPU")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["1.5B", "0.5B"])
    parser.add_argument("--variants", nargs="+", type=int, default=range(len(VARIANTS)), metavar="INDEX")
    parser.add_argument(
        "--deadline", type=float, default=1e9, help="seconds after which the variants that are left are skipped"
    )
    parser.add_argument("--no-checks", action="store_true")
    parser.add_argument(
        "--profile", type=Path, metavar="FOLDER", help="where to write a trace of each variant's last update"
    )
    parser.add_argument("--out", type=Path, default=Path("update.json"))
    options = parser.parse_args()
    begin = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__, "transformers": transformers.__version__, "checks": {}, "results": [],
    }  # fmt: skip
    with alone(device):
        if not options.no_checks:
            found["checks"] = run_checks(device)
        for index in options.variants:
            for name in ["tiny"] if options.tiny else options.shapes:
                if time.monotonic() - begin > options.deadline:
                    print(f"SKIPPED {name}: {VARIANTS[index]}", flush=True)
                    continue
                found["results"].append(
                    _timed(
                        name,
                        VARIANTS[index],
                        device,
                        options.profile and options.profile / f"update-{name}-{index}.json.gz",
                    )
                )
                options.out.write_text(json.dumps(found, indent=1) + "\n")


def _timed(name: str, variant: Variant, device: torch.device, trace: Path | None) -> dict[str, Any]:
    """One line of the results; `error` in place of the numbers if it fails. trace: a file for one more update."""
    begin = time.perf_counter()
    line: dict[str, Any] = {"shape": name, "variant": str(variant)}
    try:
        line |= _measure(name, variant, device, trace)
    except Exception as error:  # noqa: BLE001  a variant that runs out of memory is a result
        traceback.print_exc()
        line["error"] = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    gc.collect()
    torch._dynamo.reset()  # noqa: SLF001  shapes and variants do not share what was compiled
    if device.type == "cuda":
        torch.cuda.empty_cache()
    line["total_seconds"] = round(time.perf_counter() - begin, 1)
    print("RESULT", json.dumps(line), flush=True)
    return line


def _measure(name: str, variant: Variant, device: torch.device, trace: Path | None) -> dict[str, Any]:
    graphs = compiled_graphs()
    with head(fused=variant.fused_head):
        made = Trained(SHAPES[name], spec_of(SHAPES[name], variant, "auto"), device)
        seconds = []
        for update in range(WARM_UP + UPDATES):
            if update == WARM_UP and device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            begin = time.perf_counter()
            made.queue().read()
            seconds.append(time.perf_counter() - begin)
        peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
        if trace is not None:
            _profiled(made, trace)
    speed = made.tokens / statistics.median(seconds[WARM_UP:])
    return {
        "tokens_per_second": round(speed),
        "mfu_6n": round(6 * made.parameters * speed / PEAK, 4),
        "peak_gib": round(peak / 2**30, 2) if peak else None,
        "update_seconds": [round(each, 3) for each in seconds],
        "tokens": made.tokens,
        "parameters": made.parameters,
        "graphs": compiled_graphs() - graphs,
    }


def _profiled(made: Trained, trace: Path) -> None:
    """Write the trace of one more update, which Perfetto opens, and print the kernels that took longest."""
    with torch.profiler.profile() as profiler:
        made.queue().read()
    trace.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(trace))
    order = "self_device_time_total" if made.device.type == "cuda" else "self_cpu_time_total"
    print(profiler.key_averages().table(sort_by=order, row_limit=40, max_name_column_width=80), flush=True)


if __name__ == "__main__":
    main()
