"""pass@k and mean@n of the rewards of several samples a prompt."""

from collections.abc import Mapping, Sequence
from math import comb, fsum


def pass_at(k: int, samples: int, passed: int) -> float:
    """The probability that at least one of k samples passes, from `samples` of which `passed` did; without bias.

    1 - C(samples - passed, k) / C(samples, k): Chen et al. 2021, section 2.1, https://arxiv.org/abs/2107.03374. Of 4
    samples with 1 passed, pass@2 is 1 - 3 / 6 = 0.5.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs at least {k} samples, and there are {samples}")
    return 1 - comb(samples - passed, k) / comb(samples, k)


def summary(rewards: Sequence[Sequence[float]], ks: Sequence[int], passing: float) -> dict[str, float]:
    """The means over prompts. rewards: [prompts][n], the same n for all. passing: a sample with this reward passes."""
    n = len(rewards[0])
    means = {f"mean@{n}": fsum(fsum(each) / n for each in rewards) / len(rewards)}
    passed = [sum(reward >= passing for reward in each) for each in rewards]
    return means | {f"pass@{k}": fsum(pass_at(k, n, count) for count in passed) / len(passed) for k in ks}


def table(found: Mapping[str, tuple[int, Mapping[str, float]]]) -> str:
    """Lines of aligned columns: a row for each data source, its prompts and its numbers."""
    heads = ["data source", "prompts", *next(iter(found.values()))[1]]
    rows = [[source, str(count), *(f"{value:.4f}" for value in numbers.values())]
            for source, (count, numbers) in found.items()]  # fmt: skip
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    return "\n".join(_line(row, widths) for row in [heads, *rows])


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    numbers = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
    return "  ".join([row[0].ljust(widths[0]), *numbers])
