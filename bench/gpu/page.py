"""docs/benchmarks/gpu.md and gpu.png, from the JSON file of each run of the benchmark."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from bench.by_hand import write_keeping_what_is_by_hand
from bench.gpu.shapes import LONG, PROMPTS, PROMPTS_OF_LONG, SAMPLES
from rljob_trainer.progress import names
from rljob_trainer.rank.usage import model_flops, peak_flops

WARM_UP = 2
"""Steps of each run that do not count: kernels are compiled in them."""

PHASES = ("rollout", "update", "sync", "other")

SYNC_TIMES, SYNC_SECONDS = 3, 0.03
"""The goal of a sync: so many times its bytes over the copy bandwidth, and so many seconds."""

_HEAD = """# On GPUs

`make bench-gpu` on a machine with a GPU times whole RL steps of RLJob and of TRL, one after the other: full
fine-tuning by GRPO of random Qwen2.5 shapes, {prompts} prompts of 64 to 128 tokens a step, {samples} responses each
({long_prompts} prompts where a response has {long:,} tokens), one AdamW step, float32 masters and bfloat16 products,
vLLM on the same GPU. `python -m bench.gpu --page` writes this page from the files in [gpu/](gpu), one for each run of
the benchmark. The first {warm_up} steps of a run do not count, of a run of two the first; the others' mean is shown,
and the smallest and largest rollout.

tokens/s counts prompts and responses. MFU of the update: 6 x parameters x tokens (4 x with an adapter, because frozen
weights have no gradients), embeddings included and recomputation left out, over 989 TFLOP/s. TRL's update is all that
follows its old log-probabilities, which are in its other. Peaks are of all processes, by NVML, after the first step;
most of a rollout's is the engine's reserve, a setting. Start: from the command to the first rollout. Floor of a sync:
{times} x the bytes sent / measured copy bandwidth + {seconds:g} s; it leaves out what goes between several GPUs.

![tokens per second, and seconds of a step by phase](gpu.png)
"""


def write_page(results: Path, output: Path) -> None:
    """results: the folder with the files. Of output, gpu.md keeps what follows its line `<!-- by hand -->`."""
    found = [json.loads(file.read_text()) for file in sorted(results.glob("*.json"))]
    text = _HEAD.format(
        prompts=PROMPTS, long_prompts=PROMPTS_OF_LONG, long=LONG, samples=SAMPLES,
        warm_up=WARM_UP, times=SYNC_TIMES, seconds=SYNC_SECONDS,
    )  # fmt: skip
    tables = "\n".join(line for each in found for line in _section(each))
    write_keeping_what_is_by_hand(output / "gpu.md", f"{text}\n{tables}")
    _draw([(each, run) for each in found for run in each["runs"] if _kept(run)], output / "gpu.png")


def _section(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {found['card']}, {found['date']}, commit {found['commit']}"
    yield ""
    yield f"{found['packages']}; a copy moves {found['copy_bytes_per_second'] / 1e12:.2f} TB/s, read and written."
    yield ""
    head = ("run", "tokens/s", "step s", "rollout", "update", "sync", "floor", "other", "MFU", "peaks GiB", "start s")
    yield _row(head)
    yield _row(["---"] * len(head))
    yield from (_row(_cells(found, run)) for run in found["runs"])
    yield ""


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _kept(run: Mapping[str, Any]) -> Sequence[Mapping[str, float]]:
    steps: Sequence[Mapping[str, float]] = run["steps"]
    return steps[min(WARM_UP, max(1, len(steps) - 1)) :]


def _cells(found: Mapping[str, Any], run: Mapping[str, Any]) -> list[str]:
    steps = _kept(run)
    if not steps:
        return [f"`{run['item']}`", "failed" if run["error"] else "too short", *[""] * 9]
    means = {name: mean(step[name] for step in steps) for name in steps[0]}
    rollouts = [step["rollout"] for step in steps]
    bandwidth = found["copy_bytes_per_second"]
    sent = run["metrics"].get(names.SYNC_BYTES, 2 * run["parameters"])
    floor = SYNC_TIMES * sent / bandwidth + SYNC_SECONDS
    _, gpus = _trainer(run["item"])
    flops = model_flops(run["parameters"], means["tokens"], trained="model.lora" not in run["item"])
    mfu = flops / (means["update"] * gpus * peak_flops(found["card"]))
    return [
        f"`{run['item']}`",
        f"{means['tokens'] / means['seconds']:,.0f}",
        f"{means['seconds']:.2f}",
        f"{means['rollout']:.2f} ({min(rollouts):.2f} to {max(rollouts):.2f})",
        f"{means['update']:.2f}",
        f"{means['sync']:.3f}",
        f"{floor:.3f}",
        f"{means['other']:.2f}",
        f"{mfu:.1%}",
        ", ".join(f"{phase} {peak / 2**30:.0f}" for phase, peak in run["peaks"].items() if peak) or "-",
        f"{run['start']:.0f}" if run["start"] is not None else "-",
    ]


def _draw(runs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], file: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    labels = [_label(found["card"], run["item"], found["commit"]) for found, run in runs]
    figure, axes = pyplot.subplots(figsize=(10, 1.3 + 0.55 * len(runs)), layout="constrained")
    places, left = range(len(runs)), [0.0] * len(runs)
    for phase in PHASES:
        widths = [mean(step[phase] for step in _kept(run)) for _, run in runs]
        axes.barh(places, widths, left=left, label=phase)
        left = [one + other for one, other in zip(left, widths, strict=True)]
    for place, (_, run) in enumerate(runs):
        speed = mean(step["tokens"] for step in _kept(run)) / mean(step["seconds"] for step in _kept(run))
        axes.text(left[place], place, f" {speed:,.0f} tokens/s", va="center")
    axes.set_yticks(places, labels, fontsize="small")
    axes.invert_yaxis()
    axes.set_xlabel("seconds of a step")
    axes.set_xlim(0, 1.4 * max(left, default=1))
    figure.legend(loc="outside upper right", ncols=len(PHASES), frameon=False)
    figure.savefig(file, dpi=110)


def _label(card: str, item: str, commit: str) -> str:
    """Trainer, model, response tokens and cards; below them the commit and the settings."""
    name, gpus = _trainer(item)
    _, model, tokens, *settings = item.split(":")
    cards = f"{gpus} x " if gpus > 1 else ""
    own = [".".join(each.split(".")[-2:]) for each in settings]
    return f"{name}, {model}, {tokens} tokens, {cards}{card.removeprefix('NVIDIA ')}\n{', '.join([commit, *own])}"


def _trainer(item: str) -> tuple[str, int]:
    """Its name, and how many GPUs it runs on."""
    written = item.partition(":")[0]
    trainer = written.rstrip("0123456789")
    return {"ours": "RLJob", "trl": "TRL"}[trainer], int(written.removeprefix(trainer) or 1)
