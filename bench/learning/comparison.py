"""Ours beside TRL's GRPOTrainer, seed by seed: both begin with the same weights, so their difference has less noise."""

from collections.abc import Mapping, Sequence
from math import sqrt
from operator import attrgetter
from statistics import mean, stdev
from typing import Final

from bench.learning.results import Result
from rljob_api.markdown import table

NOISE: Final = 2.0
"""Standard errors by which the mean difference may lie below 0 and say nothing.

Of equal trainers 9 in 100 would be further below over three seeds, 5 in 100 over six: Student's t with two degrees of
freedom, and with five.
"""

_MEASURES: Final = {
    "start": attrgetter("start"),
    "end": attrgetter("end"),
    "mean over all validations": attrgetter("height"),
}

ABOUT: Final = f"""TRL's GRPOTrainer generates with transformers and starts from the weights of our run after its
supervised steps. Data, rewards, hyper-parameters and the number of samples per step are the same. Values are means and
ranges over seeds. TRL's trainer excludes biases and norms from the weight decay, starts its warm-up with a step of 0,
and adds 1e-4 to a group's standard deviation instead of 1e-6. Seconds are not comparable: different numbers of runs
shared a GPU, and TRL's include our supervised steps and the export.

The comparison pairs runs of the same seed. Ours is within seed noise or better if the mean difference is at most
{NOISE:g} standard errors below 0, at the end and over all validations. For equal trainers the chance of a larger
difference is 9% with three seeds and 5% with six; so few seeds cannot show a smaller one."""


def comparison(ours: Sequence[Result], theirs: Sequence[Result]) -> str:
    """A table and a verdict, of the seeds that both have; "" where there are none."""
    by_seed = {run.seed: run for run in theirs}
    pairs = [(run, by_seed[run.seed]) for run in ours if run.seed in by_seed]
    if not pairs:
        return ""
    differences = {name: [of(own) - of(other) for own, other in pairs] for name, of in _MEASURES.items()}
    rows = [
        _row("ours", [own for own, _ in pairs]),
        _row("TRL", [other for _, other in pairs]),
        ["ours less TRL", *(spread(each, sign="+") for each in differences.values()), ""],
    ]
    if len(pairs) > 1:
        rows.append(["its standard error", *(f"{standard_error(each):.4f}" for each in differences.values()), ""])
    seeds = "1 seed" if len(pairs) == 1 else f"{len(pairs)} seeds"
    heading = f"{pairs[0][0].task}, {pairs[0][0].arm}, {seeds}, {pairs[0][0].samples} samples a step"
    return "\n\n".join([table((heading, *_MEASURES, "s a run"), rows).strip(), _verdict(differences)])


def level(differences: Sequence[float]) -> bool:
    """Whether ours is within seed noise or better. differences: ours less theirs, of two seeds or more."""
    return mean(differences) >= -NOISE * standard_error(differences)


def standard_error(values: Sequence[float]) -> float:
    return stdev(values) / sqrt(len(values))


def spread(values: Sequence[float], digits: int = 3, sign: str = "-") -> str:
    """Mean and range. sign: as in a format specification."""
    each, *others = (f"{value:{sign}.{digits}f}" for value in (mean(values), min(values), max(values)))
    return each if len(values) == 1 else f"{each} ({' to '.join(others)})"


def _verdict(differences: Mapping[str, Sequence[float]]) -> str:
    if len(differences["end"]) < 2:
        return "There is no verdict, because one seed does not show seed noise."
    below = [name for name, each in differences.items() if not level(each)]
    return (
        f"Ours is below TRL: {', '.join(below)}." if below else "Ours is within seed noise or better, at equal samples."
    )


def _row(name: str, runs: Sequence[Result]) -> list[str]:
    measured = [spread([of(run) for run in runs]) for of in _MEASURES.values()]
    return [name, *measured, spread([run.seconds for run in runs], digits=0)]
