"""`spec.recovery`: which failures lead to a restart, how often and how soon."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rljob_api.conditions import Reason
from rljob_api.v1alpha1.base import REASON_PATTERN, ApiModel, CountOrZero, Duration, Rule

FAILURES = tuple(each for each in Reason if {*each.where} == {"Recovering", "Failed"})
"""Reasons that either restart or end a job."""

_WORDS = f"{', '.join(FAILURES[:-1])} and {FAILURES[-1]}"

_NO_FAILURES = (Reason.STOPPED_ON_REQUEST, Reason.FENCED)

RuleAction = Literal["restart", "restart_uncharged", "give_up"]


class Backoff(ApiModel):
    """Waits before restarts. The first restart is immediate; a new durable checkpoint resets the wait."""

    initial: Duration = Field("1s", description="Wait before the second restart without a new checkpoint.")
    factor: Annotated[float, Field(ge=1, le=10)] = Field(
        2.0, description="Factor by which the wait grows with each restart."
    )
    max: Duration = Field(
        "1m",
        description="Longest wait. Keep it below recovery.takeoverWithin, or workers exit before the next driver"
        " starts.",
    )

    rules = (
        Rule(
            "duration(self.initial) <= duration(self.max)",
            "recovery.backoff.initial must not exceed recovery.backoff.max: lower it, or raise recovery.backoff.max",
            "initial",
        ),
    )


class RecoveryRule(ApiModel):
    """An exception to the policy. A failure must match every list that is not empty."""

    on_exit_codes: Annotated[list[Annotated[int, Field(ge=1, le=255)]], Field(max_length=32)] = Field(
        default_factory=list, description="Exit codes of the driver; signal N is 128 + N, so SIGKILL is 137."
    )
    on_reasons: Annotated[
        list[Annotated[str, StringConstraints(pattern=REASON_PATTERN, min_length=1, max_length=128)]],
        Field(max_length=32),
    ] = Field(default_factory=list, description="Reasons from exit records and conditions, such as RankLost.")
    action: RuleAction = Field(
        description=(
            "restart: start the driver again and count it against recovery.maxRestarts. restart_uncharged: start it"
            " again without counting it. give_up: end the job at once."
        )
    )

    rules = (
        Rule(
            "self.onExitCodes.size() + self.onReasons.size() > 0",
            "a recovery rule needs a condition: set onExitCodes or onReasons",
            "onExitCodes",
        ),
        Rule(
            "!self.onExitCodes.exists(code, code in [76, 77])",
            "exit codes 76 (stopped on request) and 77 (another attempt took over) are not failures: remove them from"
            " onExitCodes",
            "onExitCodes",
        ),
        Rule(
            f"!self.onReasons.exists(reason, reason in {[*map(str, _NO_FAILURES)]})",
            "StoppedOnRequest and Fenced (another attempt took over) are not failures: remove them from onReasons",
            "onReasons",
        ),
        Rule(
            f"self.onReasons.all(reason, reason in {[*map(str, FAILURES + _NO_FAILURES)]})",
            f"onReasons accepts {_WORDS}: correct the reason, or use onExitCodes",
            "onReasons",
        ),
    )


class Recovery(ApiModel):
    """What happens after a failure. Invalid jobs, data and reward code end the job, unless a rule says otherwise.

    A new durable checkpoint resets the number of restarts and the wait, so a job that makes progress can run for any
    time.
    """

    max_restarts: CountOrZero = Field(
        5, description="Restarts allowed without a new durable checkpoint; after them the job fails. 0 allows none."
    )
    backoff: Backoff = Field(default_factory=Backoff, description="Waits before restarts.")
    # `rules` is where every model of the API keeps its CEL rules.
    failure_rules: Annotated[list[RecoveryRule], Field(max_length=32)] = Field(
        default_factory=list, alias="rules", description="Exceptions to the policy; the first match applies."
    )
    hang_after: Duration = Field(
        "1m",
        description="Time without a heartbeat after which a process of the job counts as lost; ten times as long for a "
        "rank that sends heartbeats while other ranks wait for it.",
    )
    takeover_within: Duration = Field(
        "120s", description="How long engines and ranks wait for the next driver before they exit."
    )
    eviction_grace_period: Duration = Field(
        "120s", description="Time for the driver to save a checkpoint after a stop request."
    )
    node_lost_after: Duration = Field(
        "60s",
        description="Time after which the pods of an unreachable node count as lost. A change applies to new pods"
        " only.",
    )
    force_delete_lost_pods: bool = Field(
        False,
        description=(
            "Delete pods of unreachable nodes by force, although they may still run. Attempts are fenced, so an old pod"
            " that still runs cannot damage the volume."
        ),
    )

    rules = (
        Rule(
            "duration(self.hangAfter) >= duration('1s')",
            "recovery.hangAfter must be at least 1s, or healthy processes count as lost: set it to 1m, for example",
            "hangAfter",
        ),
        Rule(
            "duration(self.takeoverWithin) > duration('0s')",
            "recovery.takeoverWithin must be above 0s: set it to 120s, for example",
            "takeoverWithin",
        ),
        Rule(
            "duration(self.nodeLostAfter) >= duration('1s')",
            "recovery.nodeLostAfter must be at least 1s: set it to 60s, for example",
            "nodeLostAfter",
        ),
    )
