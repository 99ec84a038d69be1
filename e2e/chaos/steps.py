"""The steps of a run, read from its volume while it trains, what came after a fault, and what share was useful."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rljob_trainer.progress.history import Line, parse_lines
from rljob_trainer.progress.names import TIME_STEP
from rljob_trainer.progress.state import last_attempt
from rljob_trainer.volume import Volume


class Steps:
    """Of one run. A file is read again when it has grown."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._files: dict[Path, tuple[int, list[Line]]] = {}

    def lines(self) -> list[Line]:
        """Every step that any attempt finished, in the order in which they were written; `attempt` is whose it is."""
        for attempt in range(1, last_attempt(self._volume) + 1):
            path = self._volume.metrics(attempt)
            size, _ = self._files.get(path, (0, []))
            if path.exists() and path.stat().st_size != size:
                text = path.read_text()
                lines = [line | {"attempt": attempt} for line in parse_lines(text) if "time/step" in line]
                self._files[path] = len(text.encode()), lines
        return sorted((line for _, lines in self._files.values() for line in lines), key=lambda line: line["time"])


@dataclass(frozen=True, slots=True)
class Recovery:
    """What came after a fault. update, step: when the next update and the next new step ended. Others: as in Struck."""

    update: float
    step: float
    repeated: int
    journaled: int


def recovery_in(lines: list[Line], known: int, *, updating: bool, lost: int | None) -> Recovery | None:
    """None while there is no new step.

    lines: of all steps. known: how many of them were there before the fault. updating: whether the next step's own
    update had begun, so that it is not one that came after the fault. lost: the attempt that was struck, where the
    fault ends it: what it still finishes, before that takes effect, is no recovery.
    """
    before, after = lines[:known], lines[known:]
    if lost is not None:
        before, after = [[line for line in lines if (line["attempt"] > lost) is later] for later in (False, True)]
        updating = False
    last = max(line["step"] for line in before)
    under_way = last + updating
    new = next((line for line in after if line["step"] > under_way), None)
    if new is None:
        return None
    upto = after[: after.index(new) + 1]
    update = next(line for line in upto if line["step"] != under_way or not updating)
    journaled = sum(int(line.get("recovery/journaled_groups", 0)) for line in upto)
    return Recovery(update["time"], new["time"], sum(line["step"] <= last for line in upto), journaled)


ETTR = (
    "ETTR is useful time divided by wall time. Useful time counts each RL step once, with the mean time of an"
    " undisturbed step of the same job in the same campaign, so waiting for a recovery is not useful time. Wall time is"
    " the time from the first driver's claim to the job's end, so start-up, supervised steps and the last save also"
    " lower the ETTR of the undisturbed job."
)
"""The definition below, for pages."""


def effective_time_ratio(calm: Sequence[Line], steps: int, seconds: float) -> float:
    """ETTR: steps * (mean seconds of an undisturbed RL step) / seconds.

    calm: the lines of the RL steps of undisturbed runs of the same job. steps: RL steps that count, each once.
    seconds: from the first driver's claim to the end; inf, and so a ratio of 0, where the end never came.
    """
    return steps * fmean(line[TIME_STEP] for line in calm) / seconds
