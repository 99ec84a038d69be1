"""What the faults of a campaign cost, as a page."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from e2e.chaos.report import percentiles
from e2e.chaos.steps import ETTR, effective_time_ratio
from e2e.cluster_chaos.faults import FAULTS
from e2e.cluster_chaos.trial import Struck, Trial
from rljob_api.markdown import table


def page(about: str, calm: Trial, trials: Sequence[Trial], verdict: str) -> str:
    """calm: the undisturbed job."""
    undisturbed, *others = (
        effective_time_ratio(calm.history, len(each.history), each.seconds) for each in (calm, *trials)
    )
    effective = (
        f"ETTR: {undisturbed:.2f} of the undisturbed job, which ran alone; {fmean(others):.2f} of the others, which"
        f" shared the cores and had a fault every {_between(trials):.0f} s. {ETTR}"
    )
    parts = ["# Recovery in a cluster", about, verdict, effective, "![Jobs and faults over time](recovery_cluster.png)"]
    return "\n\n".join([*parts, costs([each for trial in trials for each in trial.struck])])


def costs(struck: Sequence[Struck]) -> str:
    """Markdown: a row for each fault."""
    groups: dict[str, list[Struck]] = defaultdict(list)
    for each in struck:
        groups[each.fault.name].append(each)
    rows = [_row(fault.name, groups[fault.name]) for fault in FAULTS if fault.name in groups]
    heading = ("fault", "times", "next update, s: p50", "p95", "next new step, s: p50", "p95",
               "repeated updates: mean", "max", "journaled groups")  # fmt: skip
    return table(heading, [*rows, _row("**all**", struck)])


def _row(name: str, struck: Sequence[Struck]) -> list[str]:
    times = [percentiles([getattr(each, field) for each in struck]) for field in ("next_update", "next_step")]
    seconds = [f"{value:.1f}" for pair in times for value in pair]
    repeated = [each.repeated for each in struck]
    groups = sum(each.journaled for each in struck)
    return [name, str(len(struck)), *seconds, f"{fmean(repeated):.1f}", str(max(repeated)), str(groups)]


def _between(trials: Sequence[Trial]) -> float:
    """Seconds of training for each fault."""
    return sum(each.seconds for each in trials) / sum(len(each.struck) for each in trials)
