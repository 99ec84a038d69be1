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
        f"ETTR: {undisturbed:.2f} for the undisturbed job, which ran alone; {fmean(others):.2f} for the others, which"
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
        "In the picture a job starts after the previous one has ended and is removed. Removal of a deleted job took"
        f" {removal}; from `kubectl apply` of the next one to its first RL step, including pods, imports and supervised"
        f" steps, it took {start}."
    )


def _longest(seconds: Sequence[float | None]) -> str:
    known = [each for each in seconds if each is not None]
    return f"{max(known):.0f} s at most" if known else "not recorded"


_BASIS = """\
- **Each step once, the same weights**: the counting lines of metrics name every RL step once, and all parameters of the
  last checkpoint equal the undisturbed job's.
- **No finished group generated again**: the check copies every file of the journal (ten looks per second). In all
  attempts together a group (of a prompt, for a step, a policy and settings, as the trainer looks it up) may have one
  record. An attempt that lost a scorer may have two, because a group that is scored again gets another record.
- **No update repeated that a durable checkpoint had**: an attempt may not continue after a step (its claim names it)
  before the newest checkpoint whose manifest existed before the claim. By its lines of metrics it may compute no
  earlier step, and no step twice.
- **Nothing twice**: at no look (one per second) may a job have two RayClusters that are not being deleted, running pods
  of two RayClusters (by UID), two running head pods, or two drivers of one attempt among its pods' processes. A
  replaced driver is fenced, and may run beside the next one for {allowed:.0f} s (here at most {longest:.0f} s); so may
  an ending Ray head beside a starting one (here at most {heads:.0f} s).
- **Nothing left**: {gone:.0f} s after a job's deletion, kubectl lists nothing in its namespace except events and
  objects that Kubernetes creates there, and no PersistentVolume of its claim with reclaim policy `Delete`.
- **Ends**: a deleted pod, also one that is deleted by force, gets preStop and SIGTERM from its kubelet, which is a
  graceful end. A killed container or process gets SIGKILL, from its node or within its pod."""


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
