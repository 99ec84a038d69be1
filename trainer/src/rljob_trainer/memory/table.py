"""A memory plan as text. Pure."""

from collections.abc import Iterator, Sequence

from rljob_trainer.memory.held import GIB
from rljob_trainer.memory.plan import START, MemoryPlan, TooMuch, second_engine

_ROWS = (
    "weights", "optimizer", "optimizer's slice", "reference", "average", "critic", "teacher", "gradients",
    "gathered weights", "gradients on their way", "activations", "output head", "buckets", "tensor on its way",
    "engine's weights", "engine's activations", "KV cache", "CUDA contexts", "CUDA graphs",
)  # fmt: skip
"""The order of the parts."""


def rendered(plan: MemoryPlan, gpu: str, ranks: int) -> str:
    """gpu: its name. ranks: of the whole job, one a GPU."""
    size, work = plan.size, plan.work
    blocks = f"{size.layers} blocks" + (f", {size.adapter / 1e6:.1f}M of an adapter" if size.adapter else "")
    lines = [
        f"{size.parameters / 1e9:.2f}B parameters in {blocks}; {ranks} x {gpu}, {plan.gpu / GIB:.1f} GiB",
        f"passes of {work.tokens} tokens, {'with' if work.recompute and size.recomputes else 'without'} recomputation",
        "",
        *_table(plan),
        "",
    ]
    if plan.cached is not None:
        lines.append(
            f"an engine generates up to {work.sequences} sequences at once; its KV cache holds"
            f" {plan.cached // work.longest} sequences of {work.longest} tokens"
        )
    if (more := second_engine(plan)) is not None:
        lines.append(f"may generate faster with two engines: {more.field}: {more.advice}")
    return "\n".join([*lines, *(map(said, plan.too_much) if plan.too_much else ["fits"])])


def said(too_much: TooMuch) -> str:
    """What does not fit, and its remedy."""
    return f"does not fit: {needs(too_much)}: {advice(too_much)}"


def needs(too_much: TooMuch) -> str:
    """The size of what does not fit, and its name."""
    whole = "start of an engine, which asks for its whole share (rollout.gpuMemoryUtilization) beside the trainer"
    return f"{too_much.needed / GIB:.1f} GiB for the {whole if too_much.phase == START else too_much.phase}"


def advice(too_much: TooMuch) -> str:
    return f"{too_much.remedy.field}: {too_much.remedy.advice}"


def _table(plan: MemoryPlan) -> Iterator[str]:
    phases = plan.phases
    yield _row("GiB of each GPU", list(phases))
    for name in _ROWS:
        if any(name in parts for parts in phases.values()):
            yield _row(name, [f"{parts[name] / GIB:.1f}" if name in parts else "" for parts in phases.values()])
    yield _row("together", [f"{peak / GIB:.1f}" for peak in plan.peaks.values()])
    yield _row("free", [f"{(plan.gpu - peak) / GIB:.1f}" for peak in plan.peaks.values()])


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:<24}" + "".join(f"{cell:>9}" for cell in cells)
