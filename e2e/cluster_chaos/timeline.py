"""A picture of a campaign: each job a band over time, its steps by attempt, and the faults that struck it."""

from collections.abc import Sequence
from pathlib import Path

from e2e.cluster_chaos.faults import FAULTS
from e2e.cluster_chaos.trial import Trial


def draw(trials: Sequence[Trial], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    start = min(each.begin for each in trials)
    colours = plt.get_cmap("tab20")
    figure, axes = plt.subplots(figsize=(11, 1.6 + 0.7 * len(trials)), layout="constrained")
    for row, trial in enumerate(trials):
        for attempt in {line["attempt"] for line in trial.lines}:
            spans = [
                (line["time"] - line["time/step"] - start, line["time/step"])
                for line in trial.lines
                if line["attempt"] == attempt
            ]
            axes.broken_barh(spans, (row - 0.3, 0.6), color="C0" if attempt % 2 else "C9", linewidth=0)
    names = [fault.name for fault in FAULTS]
    for number, name in enumerate(names):
        points = [
            (each.at - start, row) for row, trial in enumerate(trials) for each in trial.struck
            if each.fault.name == name
        ]  # fmt: skip
        if points:
            x, y = zip(*points, strict=True)
            axes.scatter(x, [each + 0.42 for each in y], s=26, marker="v", color=colours(number), label=name, zorder=3)
    axes.set_yticks(range(len(trials)), [f"job {number + 1}" for number in range(len(trials))])
    axes.set_xlabel("seconds; a bar is a step, and the shade changes with each attempt")
    figure.legend(fontsize=7, loc="outside lower center", ncols=6)
    figure.savefig(path, dpi=130)
    plt.close(figure)
