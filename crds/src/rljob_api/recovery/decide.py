"""The policy: from a failure and a history to a decision. Each of its steps follows a table."""

from collections.abc import Collection
from enum import Enum, auto

from rljob_api.conditions import Reason
from rljob_api.contract import ExitCode
from rljob_api.durations import parse_duration
from rljob_api.recovery.terms import CURES, Action, Component, Decision, Failure, History, Level
from rljob_api.v1alpha1.recovery import Backoff, Recovery, RecoveryRule

TRIES = 2
"""Cures at one level without a new durable checkpoint before the next level is tried: one failure may be chance."""

BUG_RESTARTS = 1
"""Restarts after bugs without a new durable checkpoint: most bugs come back at once, but a race may not."""


class _Verdict(Enum):
    """How a failure counts."""

    TERMINAL = auto()
    BUG = auto()
    INFRASTRUCTURE = auto()
    FREE = auto()  # cured like infrastructure, at no charge


_OUTCOMES: dict[int | None, str] = {
    ExitCode.DONE: "the run is finished",
    ExitCode.STOPPED: "the run saved a checkpoint and stopped on request",
    ExitCode.FENCED: "another attempt took over",
}
"""The driver's exit codes that are no failures."""

_VERDICTS: dict[int | None, _Verdict] = {
    ExitCode.JOB: _Verdict.TERMINAL,
    ExitCode.DATA: _Verdict.TERMINAL,
    ExitCode.REWARD: _Verdict.TERMINAL,
    ExitCode.BUG: _Verdict.BUG,
    ExitCode.INFRASTRUCTURE: _Verdict.INFRASTRUCTURE,
    ExitCode.NO_CHECKPOINT: _Verdict.TERMINAL,
    ExitCode.STORAGE_FULL: _Verdict.TERMINAL,
}
"""The driver's other exit codes. Signals, codes that are not here and a missing record are infrastructure."""

_RULE_VERDICTS = {
    "restart": _Verdict.INFRASTRUCTURE,
    "restart_uncharged": _Verdict.FREE,
    "give_up": _Verdict.TERMINAL,
}

_FROM_DRIVER = (Level.DRIVER, Level.PODS, Level.CLUSTER)
_CURED_BY = {
    Component.REWARD: (Level.SAMPLE, *_FROM_DRIVER),
    Component.ENGINE: (Level.ENGINE, *_FROM_DRIVER),
    Component.DRIVER: _FROM_DRIVER,
    Component.RAY: (Level.CLUSTER,),
}
"""The levels that can cure a component's failure, cheapest first."""

_OTHER_NODES = (Level.CLUSTER,)
_CURED_BY_REASON: dict[str, tuple[Level, ...]] = {
    Reason.FABRIC_SLOW: _OTHER_NODES,
    Reason.FABRIC_WRONG: _OTHER_NODES,
}
"""Failures that the same nodes would show again."""

_PHRASES = {
    Level.SAMPLE: "retrying the sample",
    Level.ENGINE: "replacing the engine",
    Level.DRIVER: "restarting the driver",
    Level.PODS: "replacing the pods",
    Level.CLUSTER: "rebuilding the Ray cluster",
}


def decide_recovery(
    failure: Failure, history: History, policy: Recovery, available_levels: Collection[Level]
) -> Decision:
    """What the caller, who owns `available_levels`, should do. Pure; `History.after` adds the answer to the history."""
    if failure.component is Component.DRIVER and failure.code in _OUTCOMES:
        return Decision(Action.ACCEPT, 0.0, False, failure.reason, _OUTCOMES[failure.code])
    history = history.at(failure.durable_step)
    verdict, terminal = _verdict(failure, policy)
    if verdict is _Verdict.TERMINAL:
        return _give_up(failure, failure.reason, terminal)
    level = _level(failure, history, available_levels)
    if level is None:
        return _give_up(failure, failure.reason, "nothing is left to try at this level")
    if level < Level.DRIVER:
        return Decision(CURES[level], 0.0, False, failure.reason, f"{_PHRASES[level]}: {failure}")
    return _restart(failure, history, policy, verdict, level)


def _verdict(failure: Failure, policy: Recovery) -> tuple[_Verdict, str]:
    """How the failure counts, and why in case it is terminal."""
    for index, rule in enumerate(policy.failure_rules):
        if _matches(rule, failure):
            return _RULE_VERDICTS[rule.action], f"spec.recovery.rules[{index}] says {rule.action}"
    # Only the driver uses the contract's exit codes: a Ray head that exits with 64 is lost like any other.
    code = failure.code if failure.component is Component.DRIVER else None
    verdict = _VERDICTS.get(code, _Verdict.INFRASTRUCTURE)
    return verdict, "a restart would end the same way"


def _matches(rule: RecoveryRule, failure: Failure) -> bool:
    return (not rule.on_exit_codes or failure.exit_code in rule.on_exit_codes) and (
        not rule.on_reasons or failure.reason in rule.on_reasons
    )


def _level(failure: Failure, history: History, available: Collection[Level]) -> Level | None:
    """The cheapest level that can help, or None.

    Within an attempt `failure.times` climbs the ladder; above it the history does, and the highest level is tried until
    the budget is spent.
    """
    levels = _CURED_BY_REASON.get(failure.reason, _CURED_BY[failure.component])
    curing = [level for level in levels if level in available]
    within = [level for level in curing if level < Level.DRIVER for _ in range(TRIES)]
    if failure.times <= len(within):
        return within[failure.times - 1]
    above = [level for level in curing if level >= Level.DRIVER]
    untried = (level for level in above if history.cures.get(level, 0) < TRIES)
    return next(untried, above[-1] if above else None)


def _restart(failure: Failure, history: History, policy: Recovery, verdict: _Verdict, level: Level) -> Decision:
    """The restart at `level`, if the budget allows it."""
    charged = verdict is not _Verdict.FREE
    if charged and history.charged >= policy.max_restarts:
        return _give_up(failure, Reason.RESTARTS_EXHAUSTED, _exhausted(history, policy))
    if verdict is _Verdict.BUG and history.bugs >= BUG_RESTARTS:
        return _give_up(failure, Reason.BUG_REPEATED, f"a second bug{_since(history)}; report it with the driver's log")
    delay = _delay(policy.backoff, sum(history.cures.values()))
    when = f" in {delay:.3g} s" if delay else ""
    count = f"restart {history.charged + 1} of {policy.max_restarts}{_since(history)}" if charged else "free of charge"
    return Decision(CURES[level], delay, charged, failure.reason, f"{_PHRASES[level]}{when}, {count}: {failure}")


def _delay(backoff: Backoff, restarts: int) -> float:
    """Seconds before the next restart: 0 for the first, then initial x factor^(n-1), at most max."""
    longest = parse_duration(backoff.max)
    if restarts == 0:
        return 0.0
    try:
        return min(parse_duration(backoff.initial) * backoff.factor ** (restarts - 1), longest)
    except OverflowError:  # what a float cannot hold is longer than any wait
        return longest


def _give_up(failure: Failure, reason: str, why: str) -> Decision:
    return Decision(Action.GIVE_UP, 0.0, False, reason, f"{why}: {failure}")


def _exhausted(history: History, policy: Recovery) -> str:
    if policy.max_restarts == 0:
        return "spec.recovery.maxRestarts is 0, so nothing is restarted"
    return (
        f"gave up after {_times(history.charged)}{_since(history)}; remove the cause, or raise"
        " spec.recovery.maxRestarts, and start the job again (in a cluster as another RLJob on its volume)"
    )


def _times(restarts: int) -> str:
    return "1 restart" if restarts == 1 else f"{restarts} restarts"


def _since(history: History) -> str:
    return f" since the checkpoint of step {history.durable_step}" if history.durable_step else " without a checkpoint"
