"""Which attempts a run consists of, and how far each. Light: the agent and every reader of a run's folder use it.

Each attempt claims its number, and decides then what it continues (attempts/<n>.json). Readers follow these decisions
back from the newest one; what an older attempt wrote after it was superseded is outside, whenever it was written. E.g.

    a1 from nothing, steps 1..50, checkpoints 10 20 30 40
    a2 continues a1 from checkpoint 40, steps 41..60, checkpoint 50
    a1, frozen until now, commits its checkpoint 50         superseded: a2 took a1's steps up to 40
    a3 has claimed and not decided yet                      transparent

    lineage: a2, all of it; a1 up to step 40

A decision is also in attempts/<n>.copy.json. Clocks play no part in this. Whoever reads gets OSError where the volume
does not answer: a claim that cannot be read now is not one that is missing, and no run is begun anew for it.
"""

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_trainer.progress.state import newest_claim
from rljob_trainer.volume import Volume, read_json

CHECKPOINT_NAME = re.compile(r"step-(\d+)-a(\d+)")


@dataclass(frozen=True, slots=True)
class Claim:
    """`attempts/<n>.json` or, where that was damaged or lost after it had decided, its copy.

    nonce: random, the driver's own.
    parent: the attempt that this one continues, perhaps from step 0; None where it begins a run, from nothing or from
        another run's checkpoint.
    resumed_from: a checkpoint's name, or the absolute path of one outside the lineage; None for none.
    resumed_step: the step it continues after (0: from the start); None while it has not decided.
    anew_for: the DriverJob.start_id for which checkpoint.resume: never began the run; None under another setting.
    """

    attempt: int
    nonce: str = ""
    parent: int | None = None
    resumed_from: str | None = None
    resumed_step: int | None = None
    anew_for: str | None = None

    @property
    def foreign(self) -> Path | None:
        """The checkpoint outside the lineage that the attempt began from."""
        return Path(self.resumed_from) if self.resumed_from and self.resumed_from.startswith("/") else None

    @property
    def checkpoint_step(self) -> int:
        """Of the checkpoint it resumed from; 0 for none."""
        name = CHECKPOINT_NAME.fullmatch(Path(self.resumed_from or "").name)
        return int(name[1]) if name else 0


@dataclass(frozen=True, slots=True)
class Segment:
    """An attempt's part of a run.

    checkpoints: those of steps up to this one belong to the run. steps: its steps up to this one do. inf: all.
    """

    attempt: int
    checkpoints: float
    steps: float


@dataclass(frozen=True, slots=True)
class Lineage:
    """A run as its newest decided attempt sees it.

    claims, segments: of its attempts, newest first; none where no attempt has decided anything.
    """

    claims: tuple[Claim, ...]
    segments: tuple[Segment, ...]

    @property
    def newest(self) -> Claim | None:
        return self.claims[0] if self.claims else None

    @property
    def root(self) -> Claim | None:
        """Of the attempt that began the run."""
        return self.claims[-1] if self.claims else None

    def holds(self, step: int, attempt: int) -> bool:
        """Whether that checkpoint counts. Without any decision nothing speaks against one."""
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
    """The attempt that began the run which `attempt` belongs to: two attempts are of one run if theirs is the same."""
    claim = read_claim(volume, attempt)
    return attempt if claim is None else list(_ancestors(volume, claim))[-1].attempt


def is_known(volume: Volume, attempt: int) -> bool:
    """Whether the claims of the attempt and of all that it continues are there, back to the run's begin."""
    claim = read_claim(volume, attempt)
    return claim is not None and all(each.resumed_step is not None for each in _ancestors(volume, claim))


def read_claim(volume: Volume, attempt: int) -> Claim | None:
    """None where there is no claim, or one that makes no sense: a crash cut it short, or it is being written."""
    claim = _claim(volume.claim(attempt), attempt)
    if claim is not None and claim.resumed_step is not None:
        return claim
    copy = _claim(volume.claim_copy(attempt), attempt)
    same = copy is not None and (claim is None or claim.nonce in ("", copy.nonce))
    return copy if same else claim


def _claim(path: Path, attempt: int) -> Claim | None:
    found = None
    with suppress(ValueError):
        found = read_json(path)
    if not isinstance(found, dict):
        return None
    return Claim(
        attempt, _text(found, "nonce") or "", _number(found, "parent"), _text(found, "resumedFrom"),
        _number(found, "resumedStep"), _text(found, "anewFor"),
    )  # fmt: skip


def _ancestors(volume: Volume, claim: Claim) -> Iterator[Claim]:
    """The claim, its parent's, and so on. A parent is older; one that left no claim is taken for the first."""
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
