"""`spec.recovery`: what is worth another try after a failure, how often and how soon."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rljob_api.conditions import Reason
from rljob_api.v1alpha1.base import REASON_PATTERN, ApiModel, CountOrZero, Duration, Rule

FAILURES = tuple(each for each in Reason if {*each.where} == {"Recovering", "Failed"})
"""What may be tried again, or end a job."""

_WORDS = f"{', '.join(FAILURES[:-1])} and {FAILURES[-1]}"

_NO_FAILURES = (Reason.STOPPED_ON_REQUEST, Reason.FENCED)

RuleAction = Literal["restart", "restart_uncharged", "give_up"]


class Backoff(ApiModel):
    """Waits before restarts. The first restart comes at once; a new durable checkpoint begins the count anew."""

    initial: Duration = Field("1s", description="Wait before the second restart without a new checkpoint.")
    factor: Annotated[float, Field(ge=1, le=10)] = Field(2.0, description="Growth of the wait from restart to restart.")
    max: Duration = Field(
        "1m", description="Longest wait; above recovery.takeoverWithin the workers do not last until the next driver."
    )

    rules = (
        Rule(
            "duration(self.initial) <= duration(self.max)",
            "recovery.backoff.initial must not exceed recovery.backoff.max: lower it, or raise recovery.backoff.max",
            "initial",
        ),
    )


class RecoveryRule(ApiModel):
    """An exception to the policy. A failure matches if it matches each of the two lists that has entries."""

    on_exit_codes: Annotated[list[Annotated[int, Field(ge=1, le=255)]], Field(max_length=32)] = Field(
        default_factory=list, description="Exit codes; signal N is 128 + N, so SIGKILL is 137."
    )
    on_reasons: Annotated[
        list[Annotated[str, StringConstraints(pattern=REASON_PATTERN, min_length=1, max_length=128)]],
        Field(max_length=32),
    ] = Field(default_factory=list, description="Reasons as exit records and conditions state them, such as RankLost.")
    action: RuleAction = Field(
        description=(
            "restart: worth a try at recovery.maxRestarts' expense. restart_uncharged: the same, free of charge."
            " give_up: end the job at once."
        )
    )

    rules = (
        Rule(
            "self.onExitCodes.size() + self.onReasons.size() > 0",
            "a recovery rule must say which failures it is for: set onExitCodes or onReasons",
            "onExitCodes",
        ),
        Rule(
            "!self.onExitCodes.exists(code, code in [76, 77])",
            "76 (stopped on request) and 77 (another attempt took over) are no failures: remove them from onExitCodes",
            "onExitCodes",
        ),
        Rule(
            f"!self.onReasons.exists(reason, reason in {[*map(str, _NO_FAILURES)]})",
            "StoppedOnRequest and Fenced (another attempt took over) are no failures: remove them from onReasons",
            "onReasons",
        ),
        Rule(
            f"self.onReasons.all(reason, reason in {[*map(str, FAILURES + _NO_FAILURES)]})",
            f"onReasons knows {_WORDS}: correct the word, or match by onExitCodes",
            "onReasons",
        ),
    )


class Recovery(ApiModel):
    """What happens after a failure. Wrong jobs, data and reward code end the job whatever stands here, but for rules.

    A new durable checkpoint resets the restarts and the waits: a job that makes progress never dies of old age.
    """

    max_restarts: CountOrZero = Field(
        5, description="Restarts without a new durable checkpoint after which the job ends as failed; 0 is none."
    )
    backoff: Backoff = Field(default_factory=Backoff, description="Waits before restarts.")
    # `rules` is where every model of the API keeps its CEL rules.
    failure_rules: Annotated[list[RecoveryRule], Field(max_length=32)] = Field(
        default_factory=list, alias="rules", description="Exceptions to the policy; the first that matches decides."
    )
    hang_after: Duration = Field(
        "1m",
        description="How long a process of the job may stay silent before it counts as lost; ten times as long for a "
        "rank that answers and keeps others waiting.",
    )
    takeover_within: Duration = Field(
        "120s", description="How long engines and ranks wait for a next driver before they leave."
    )
    eviction_grace_period: Duration = Field(
        "120s", description="How long the driver may take to save a checkpoint when it is asked to stop."
    )
    node_lost_after: Duration = Field(
        "60s",
        description="How long a node may be unreachable before its pods count as lost; holds for pods made later.",
    )
    force_delete_lost_pods: bool = Field(
        False,
        description=(
            "Whether pods of unreachable nodes are deleted though nobody knows that they have ended. Where two pods may"
            " then write one volume, attempts are fenced all the same."
        ),
    )

    rules = (
        Rule(
            "duration(self.hangAfter) >= duration('1s')",
            "recovery.hangAfter must be 1s or more, or sound processes count as lost: set it to 1m, say",
            "hangAfter",
        ),
        Rule(
            "duration(self.takeoverWithin) > duration('0s')",
            "recovery.takeoverWithin must be above 0s: set it to 120s, say",
            "takeoverWithin",
        ),
        Rule(
            "duration(self.nodeLostAfter) >= duration('1s')",
            "recovery.nodeLostAfter must be 1s or more: set it to 60s, say",
            "nodeLostAfter",
        ),
    )
