"""Which attempts a run consists of, and up to which step each one counts. Light: the agent uses it.

Each attempt claims its number, then records what it continues (attempts/<n>.json and a copy). Readers follow these
records back from the newest attempt; what an older attempt wrote after it was superseded does not count. Example:

    a1 begins a run, steps 1..50, checkpoints 10 20 30 40
    a2 continues a1 from checkpoint 40, steps 41..60, checkpoint 50
    a1, frozen until now, commits its checkpoint 50         superseded: a2 continued a1 from step 40
    a3 has claimed its number and not decided yet           ignored

    lineage: a2, all of it; a1 up to step 40

No clocks are compared. Functions raise OSError if the volume does not answer: an unreadable claim is not a missing
one, and must not cause a new run.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rljob_trainer.progress.state import newest_claim
from rljob_trainer.volume import Volume, read_json

CHECKPOINT_NAME = re.compile(r"step-(\d+)-a(\d+)")


@dataclass(frozen=True, slots=True)
class Claim:
    """`attempts/<n>.json`, or its copy if the original was damaged or lost after the decision.

    nonce: random, unique to the driver.
    parent: the attempt that this one continues; None if it begins a run, from nothing or another run's checkpoint.
    resumed_from: a checkpoint's name, or the absolute path of one outside the lineage; None without a checkpoint.
    resumed_step: the step it continues after (0: from the start); None before the decision.
    fresh_for: the DriverJob.start_id for which checkpoint.resume: never began the run; None for other settings.
    start_time: when it was written, in ISO format.
    """

    attempt: int
    nonce: str = ""
    parent: int | None = None
    resumed_from: str | None = None
    resumed_step: int | None = None
    fresh_for: str | None = None
    start_time: str | None = field(default=None, compare=False)

    @property
    def foreign(self) -> Path | None:
        """The checkpoint outside the lineage that the attempt started from."""
        return Path(self.resumed_from) if self.resumed_from and self.resumed_from.startswith("/") else None

    @property
    def checkpoint_step(self) -> int:
        """Step of the checkpoint that it resumed from; 0 without one."""
        name = CHECKPOINT_NAME.fullmatch(Path(self.resumed_from or "").name)
        return int(name[1]) if name else 0


@dataclass(frozen=True, slots=True)
class Segment:
    """An attempt's part of a run: its checkpoints and its steps up to these limits (inf: all)."""

    attempt: int
    checkpoints: float
    steps: float


@dataclass(frozen=True, slots=True)
class Lineage:
    """A run as its newest decided attempt sees it: attempts newest first; empty before the first decision."""

    claims: tuple[Claim, ...]
    segments: tuple[Segment, ...]

    @property
    def newest(self) -> Claim | None:
        return self.claims[0] if self.claims else None

    @property
    def root(self) -> Claim | None:
        """The claim of the attempt that began the run."""
        return self.claims[-1] if self.claims else None

    def holds(self, step: int, attempt: int) -> bool:
        """Whether that checkpoint belongs to the run; before the first decision every checkpoint does."""
        if self.newest is None:
            return True
        return any(each.attempt == attempt and step <= each.checkpoints for each in self.segments)


def lineage(volume: Volume) -> Lineage:
    claims = (read_claim(volume, attempt) for attempt in range(newest_claim(volume), 0, -1))
    newest = next((claim for claim in claims if claim is not None and claim.resumed_step is not None), None)
    if newest is None:
        return Lineage((), ())
    ancestors = tuple(_ancestors(volume, newest))
    return Lineage(ancestors, tuple(_segments(ancestors)))


def root_of(volume: Volume, attempt: int) -> int:
    """The attempt that began the run of `attempt`; equal for attempts of the same run."""
    claim = read_claim(volume, attempt)
    return attempt if claim is None else list(_ancestors(volume, claim))[-1].attempt


def is_known(volume: Volume, attempt: int) -> bool:
    """Whether the claims of the attempt and of all its ancestors exist."""
    claim = read_claim(volume, attempt)
    return claim is not None and all(each.resumed_step is not None for each in _ancestors(volume, claim))


def read_claim(volume: Volume, attempt: int) -> Claim | None:
    """None if the claim does not exist or is invalid (a crash truncated it, or it is being written)."""
    claim = _claim(volume.claim(attempt), attempt)
    if claim is not None and claim.resumed_step is not None:
        return claim
    copy = _claim(volume.claim_copy(attempt), attempt)
    same = copy is not None and (claim is None or claim.nonce in ("", copy.nonce))
    return copy if same else claim


def _claim(path: Path, attempt: int) -> Claim | None:
    try:
        found = read_json(path)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    return Claim(
        attempt, _text(found, "nonce") or "", _number(found, "parent"), _text(found, "resumedFrom"),
        _number(found, "resumedStep"), _text(found, "freshFor"), _text(found, "startTime"),
    )  # fmt: skip


def _ancestors(volume: Volume, claim: Claim) -> Iterator[Claim]:
    """The claim, its parent's, and so on. A parent without a claim counts as the first attempt."""
    yield claim
    while claim.parent is not None and claim.parent < claim.attempt:
        claim = read_claim(volume, claim.parent) or Claim(claim.parent)
        yield claim


def _segments(ancestors: Iterable[Claim]) -> Iterator[Segment]:
    checkpoints = steps = math.inf
    for claim in ancestors:
        yield Segment(claim.attempt, checkpoints, steps)
        checkpoints = min(checkpoints, claim.checkpoint_step)
        steps = min(steps, claim.resumed_step or 0)


def _number(found: dict[str, Any], key: str) -> int | None:
    value = found.get(key)
    return value if isinstance(value, int) else None


def _text(found: dict[str, Any], key: str) -> str | None:
    value = found.get(key)
    return value if isinstance(value, str) else None
