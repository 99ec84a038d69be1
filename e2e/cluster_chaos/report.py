"""What the faults of a campaign cost, as a page."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from e2e.chaos.report import percentiles
from e2e.chaos.steps import ETTR, effective_time_ratio
from e2e.cluster_chaos.faults import FAULTS
from e2e.cluster_chaos.trial import GONE_SECONDS, Struck, Trial
from e2e.cluster_chaos.verdicts import SIDE_BY_SIDE_SECONDS
from rljob_api.markdown import table


def page(about: str, calm: Trial, trials: Sequence[Trial], verdict: str) -> str:
    """calm: the undisturbed job."""
    undisturbed, *others = (
        effective_time_ratio(calm.history, len(each.history), each.seconds) for each in (calm, *trials)
    )
    effective = (
        f"ETTR: {undisturbed:.2f} of the undisturbed job, which ran alone; {fmean(others):.2f} of the others, which"
        f" shared the cores and had {_pace(trials)}. {ETTR}"
    )
    picture = "![Jobs and faults over time](recovery_cluster.png)"
    parts = ["# Recovery in a cluster", about, verdict, effective, picture, between(trials)]
    table_of_costs = costs([each for trial in trials for each in trial.struck])
    return "\n\n".join([*parts, table_of_costs, "## What the verdicts rest on", basis(trials)])


def between(trials: Sequence[Trial]) -> str:
    """Markdown: what fills the time between a job's end and the first step of the next one, which takes its place."""
    removal = _longest([each.removal for each in trials])
    start = _longest([each.start for each in trials])
    return (
        "In the picture a job begins where another one has ended and is removed. Until nothing was left of a job that"
        f" was deleted: {removal}; from `kubectl apply` of the next one to its first RL step, with pods, imports and"
        f" supervised steps: {start}."
    )


def _longest(seconds: Sequence[float | None]) -> str:
    known = [each for each in seconds if each is not None]
    return f"{max(known):.0f} s at most" if known else "not recorded"


_BASIS = """\
- **Each step once, the same weights**: the lines of metrics that count must name every RL step once, and all parameters
  of the last checkpoint must equal the undisturbed job's.
- **No finished group generated again**: every file of the journal is kept, from when a look finds it (ten a second) to
  the end, and in all attempts together a group (of a prompt, for a step, a policy and settings, as the trainer looks it
  up) may have one record; an attempt that lost a scorer may have two, for a group that is scored again gets another.
- **No update repeated that a durable checkpoint had**: an attempt may not go on after a step (its claim says which)
  before the newest checkpoint of the run whose manifest was seen before its claim was, nor do an earlier step, nor one
  twice, by its lines of metrics.
- **Nothing twice**: in no look (one a second) may a job have two RayClusters that nobody has deleted, running pods of
  two (by uid), two running head pods, or two drivers of an attempt among its pods' processes, which this machine sees;
  a driver that was replaced is fenced, and may be awake beside the next for {allowed:.0f} s (here {longest:.0f} s at
  most), and so may a Ray head that ends beside one that starts (here {heads:.0f} s at most).
- **Nothing left**: {gone:.0f} s after a job's deletion kubectl may list nothing in its namespace, of any kind but
  events and what Kubernetes makes there, and no PersistentVolume of its claim whose reclaim policy is `Delete`.
- **Ends**: a pod that is deleted, also by force, gets preStop and SIGTERM from its kubelet, which is a graceful end; a
  container or process that is killed gets SIGKILL, from its node or within its pod."""


def basis(trials: Sequence[Trial]) -> str:
    """Markdown: a sentence for each verdict."""
    longest = max(each.running.awake.longest for each in trials)
    heads = max(each.running.ray_heads.longest for each in trials)
    return _BASIS.format(allowed=SIDE_BY_SIDE_SECONDS, longest=longest, heads=heads, gone=GONE_SECONDS)


def costs(struck: Sequence[Struck]) -> str:
    """Markdown: a row for each fault; times are of those after which the job went on."""
    groups: dict[str, list[Struck]] = defaultdict(list)
    for each in struck:
        groups[each.fault.name].append(each)
    rows = [_row(fault.name, groups[fault.name]) for fault in FAULTS if fault.name in groups]
    heading = ("fault", "times", "next update, s: p50", "p95", "next new step, s: p50", "p95",
               "repeated updates: mean", "max", "journaled groups")  # fmt: skip
    return table(heading, [*rows, _row("**all**", struck)]) if rows else "No fault struck."


def _row(name: str, struck: Sequence[Struck]) -> list[str]:
    went_on = [each for each in struck if each.next_update is not None]
    times = [
        percentiles([getattr(each, field) for each in went_on]) for field in ("next_update", "next_step") if went_on
    ]
    seconds = [f"{value:.1f}" for pair in times for value in pair] or ["the job ended", "", "", ""]
    repeated = [each.repeated for each in struck]
    groups = sum(each.journaled for each in struck)
    return [name, str(len(struck)), *seconds, f"{fmean(repeated):.1f}", str(max(repeated)), str(groups)]


def _pace(trials: Sequence[Trial]) -> str:
    """How often they had a fault, in seconds of training."""
    struck = sum(len(each.struck) for each in trials)
    return f"a fault every {sum(each.seconds for each in trials) / struck:.0f} s" if struck else "no fault"
