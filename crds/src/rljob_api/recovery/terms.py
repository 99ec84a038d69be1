"""The nouns of recovery. A worked example, with the levels of the operator:

Failure(DRIVER, "DriverLost", code=-9, durable_step=40)
Decision(RESTART_DRIVER, delay=0.0, charged=True, "DriverLost", "restarting the driver, restart 1 of 5 ...")
History().after(failure, decision) == History(durable_step=40, charged=1, cures={Level.DRIVER: 1})
... and with a checkpoint of step 50, the next failure finds History(durable_step=50).
"""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum, auto

from rljob_api.contract import ExitCode


class Component(StrEnum):
    """What failed."""

    REWARD = auto()  # a process that scores, by no fault of the reward code
    ENGINE = auto()  # a rollout engine: died, hung, or holds wrong weights
    DRIVER = auto()  # ended, by itself or for a lost rank; its exit code is the contract's ExitCode
    RAY = auto()  # Ray's head: its processes or its pod


class Level(IntEnum):
    """The restart ladder, cheapest first."""

    SAMPLE = 1
    ENGINE = 2
    DRIVER = 3
    PODS = 4
    CLUSTER = 5


DRIVER_LEVELS = frozenset({Level.SAMPLE, Level.ENGINE})
LOCAL_LEVELS = frozenset({Level.DRIVER, Level.CLUSTER})
OPERATOR_LEVELS = frozenset({Level.DRIVER, Level.PODS, Level.CLUSTER})


class Action(StrEnum):
    """What the caller does."""

    RETRY_SAMPLE = auto()
    REPLACE_ENGINE = auto()
    RESTART_DRIVER = auto()
    REPLACE_PODS = auto()
    REBUILD_CLUSTER = auto()
    GIVE_UP = auto()
    ACCEPT = auto()  # no failure: finished, stopped on request, or another attempt took over


CURES = {
    Level.SAMPLE: Action.RETRY_SAMPLE,
    Level.ENGINE: Action.REPLACE_ENGINE,
    Level.DRIVER: Action.RESTART_DRIVER,
    Level.PODS: Action.REPLACE_PODS,
    Level.CLUSTER: Action.REBUILD_CLUSTER,
}
_LEVELS = {action: level for level, action in CURES.items()}


@dataclass(frozen=True, slots=True)
class Failure:
    """What happened.

    reason: one CamelCase word, the exit record's or the caller's: DriverLost, RankLost, EngineLost ...
    message: the same for a person, naming the rank, engine or pod.
    code: exit code, or -N for signal N; None if there is no record.
    times: how often this very engine, or the rollout host, has failed since the newest durable checkpoint, this time
        included. Levels above the driver use the history instead.
    durable_step: step of the newest durable checkpoint, 0 for none.
    """

    component: Component
    reason: str
    message: str = ""
    code: int | None = None
    times: int = 1
    durable_step: int = 0

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ValueError(f"times counts this failure too and is at least 1; got {self.times}")

    @property
    def exit_code(self) -> int | None:
        """As shells and Kubernetes count: signal N is 128 + N."""
        return 128 - self.code if self.code is not None and self.code < 0 else self.code

    @property
    def is_bug(self) -> bool:
        return self.component is Component.DRIVER and self.code == ExitCode.BUG

    def __str__(self) -> str:
        message = f": {self.message}" if self.message else ""
        return f"{self.component} {_ended(self.exit_code)} ({self.reason}){message}"


def _ended(code: int | None) -> str:
    if code is None:
        return "failed"
    try:
        return f"ended by {signal.Signals(code - 128).name}"
    except ValueError:
        return f"exited with code {code}"


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about a failure.

    delay: seconds to wait first. charged: whether it counts against recovery.maxRestarts.
    reason: one CamelCase word. message: what is done, then what happened, for a person.
    """

    action: Action
    delay: float
    charged: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class History:
    """What a supervisor remembers: its restarts since a durable checkpoint. It starts as `History()`.

    durable_step: step of that checkpoint, 0 for none. charged: restarts against the budget. bugs: those after bugs.
    cures: restarts of each level, including those that a rule makes free.
    """

    durable_step: int = 0
    charged: int = 0
    bugs: int = 0
    cures: Mapping[Level, int] = field(default_factory=dict)

    def at(self, durable_step: int) -> "History":
        """What of it counts now: nothing after a new durable checkpoint.

        A lower step is no progress (newer checkpoints were lost, or the run began again), but what follows it is.
        """
        return History(durable_step) if durable_step > self.durable_step else replace(self, durable_step=durable_step)

    def after(self, failure: Failure, decision: Decision) -> "History":
        """With the decision about the failure added."""
        history = self.at(failure.durable_step)
        level = _LEVELS.get(decision.action)
        if level is None or level < Level.DRIVER:
            return history
        cures = {**history.cures, level: history.cures.get(level, 0) + 1}
        return replace(
            history,
            charged=history.charged + decision.charged,
            bugs=history.bugs + failure.is_bug,
            cures=cures,
        )
