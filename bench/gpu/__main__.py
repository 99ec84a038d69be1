"""Time whole RL steps of ours and of TRL on the same work; write docs/benchmarks/gpu.md and gpu.png.

    python -m bench.gpu [ITEM ...] [--steps N] [--deadline SECONDS] [--out FILE.json]     on a machine with a GPU
    python -m bench.gpu ours0:tiny:8                                                      without one, to try it out
    python -m bench.gpu --page                                                            anywhere: from gpu/*.json

ITEM is TRAINER:SHAPE:TOKENS[:SETTING...]. TRAINER is ours, oursN on N GPUs, or trl; SHAPE one of bench/gpu/work.py;
TOKENS the length of a response. A setting of ours is PATH=VALUE of the job, one of trl an option of trl_steps.py.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.commits import last_change
from bench.gpu.page import write_page
from bench.gpu.run import ours, trl
from bench.gpu.shapes import SHAPES, Work

ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / "docs" / "benchmarks"
RESULTS = OUTPUT / "gpu"

ITEMS = (
    "ours:0.5B:512",
    "trl:0.5B:512",
    "ours:1.5B:512",
    "trl:1.5B:512",
    "ours:1.5B:2048",
    "trl:1.5B:2048:samples-per-pass=16",
)

PACKAGES = ("torch", "vllm", "ray", "transformers", "trl", "liger-kernel")

CODE = ("bench/gpu", "crds/src", "trainer/src")


def main() -> None:
    options = _arguments()
    if options.page or _measure(options).parent == RESULTS:
        write_page(RESULTS, OUTPUT)
        print(f"wrote {OUTPUT / 'gpu.md'}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", nargs="*", default=ITEMS, metavar="ITEM")
    parser.add_argument("--steps", type=int, default=6, help="of a run; the first two do not count")
    parser.add_argument("--deadline", type=float, default=1e9, metavar="SECONDS", help="from now; runs end there")
    parser.add_argument("--limit", type=float, default=600, metavar="SECONDS", help="of one run")
    parser.add_argument("--commit", help="what is measured, if git cannot tell here")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where to copy logs and profiles to")
    parser.add_argument(
        "--out", type=Path, help="default: a file in docs/benchmarks/gpu, or without a GPU in the temporary folder"
    )
    parser.add_argument("--page", action="store_true", help="measure nothing")
    options = parser.parse_args()
    for item in options.items:
        trainer, shape, tokens = [*item.split(":"), "", ""][:3]
        if trainer.rstrip("0123456789") not in ("ours", "trl") or shape not in SHAPES or not tokens.isdigit():
            parser.error(f"{item} is no TRAINER:SHAPE:TOKENS")
    return options


def _measure(options: argparse.Namespace) -> Path:
    """Run item after item; the file, which it returns, is written again after each.

    No GPU memory is taken in this process.
    """
    end = time.monotonic() + options.deadline
    found: dict[str, Any] = _machine(options.commit)
    folder = Path(tempfile.gettempdir()) if found["copy_bytes_per_second"] is None else RESULTS
    out: Path = options.out or folder / f"{time.strftime('%Y-%m-%dT%H%M')}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    parent = Path(tempfile.mkdtemp(prefix="rljob-gpu-"))
    for number, item in enumerate(options.items):
        left = min(options.limit, end - time.monotonic())
        if left < 60:
            print(f"SKIPPED {item}", flush=True)
            continue
        line = _measured(item, options.steps, parent, parent / str(number), left)
        found["runs"].append(line)
        out.write_text(json.dumps(found, indent=1) + "\n")
        print("RESULT", json.dumps(line), flush=True)
        if options.keep is not None:
            _keep(parent / str(number), options.keep)
    shutil.rmtree(parent)
    print(f"wrote {out}")
    return out


_ASK = """
import json, torch
from triton.testing import do_bench
if torch.cuda.is_available():
    a = torch.ones(1 << 30, device="cuda")
    b = torch.empty_like(a)
    milliseconds = do_bench(lambda: b.copy_(a), return_mode="median")
    print(json.dumps([torch.cuda.get_device_name(), 2e3 * a.nbytes / milliseconds]))
else:
    print(json.dumps(["no GPU", None]))
"""
"""The GPU's name, and the bytes read and written a second by a copy inside its memory."""


def _machine(commit: str | None) -> dict[str, Any]:
    card, copied = json.loads(subprocess.run([sys.executable, "-c", _ASK], stdout=subprocess.PIPE, check=True).stdout)
    return {
        "card": card,
        "commit": commit or last_change(CODE),
        "date": time.strftime("%Y-%m-%d"),
        "packages": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
        "copy_bytes_per_second": copied,
        "runs": [],
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "-"


def _measured(item: str, steps: int, parent: Path, folder: Path, limit: float) -> dict[str, Any]:
    trainer, shape, tokens, *settings = item.split(":")
    work, given = Work(shape, int(tokens), steps), parent / shape
    if not given.exists():
        subprocess.run([sys.executable, "-m", "bench.gpu.work", shape, str(steps), str(given)], check=True)
    folder.mkdir()
    begin = time.monotonic()
    if trainer == "trl":
        run = trl(work, folder, given, settings, limit)
    else:
        run = ours(work, folder, given, settings, int(trainer.removeprefix("ours") or 1), limit)
    return {
        "item": item, "parameters": json.loads((given / "parameters.json").read_text()),
        "run_seconds": round(time.monotonic() - begin, 1), **asdict(run),
    }  # fmt: skip


def _keep(folder: Path, target: Path) -> None:
    """Logs, traces of calls and profiles of one run."""
    for file in folder.rglob("*"):
        if file.is_file() and (file.name == "log" or file.suffix in (".gz", ".log") or "trace" in file.parts):
            copy = target / folder.name / file.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


if __name__ == "__main__":
    main()
