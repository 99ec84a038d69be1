"""What becomes of a job at which the operator's own code raises."""

import asyncio
from typing import Any, cast

import pytest

from rljob_api.v1alpha1 import Condition
from rljob_operator import reconcile as reconcile_module
from rljob_operator.head.errors import HeadUnreachable
from rljob_operator.head.heads import Heads
from rljob_operator.kube.errors import Forbidden
from rljob_operator.kube.kinds import RLJOB, Key
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.perform.performer import Performer, Refused
from rljob_operator.plan import Plan
from rljob_operator.reconcile import FAILING_SECONDS, Reconciler
from rljob_operator.runtime.store import Store
from tests.rljob_operator.loops import in_jumping_loop, in_loop
from tests.rljob_operator.snapshots import NOW, SETTINGS, conditions, manifest

BUG = AttributeError("'str' object has no attribute 'get'")


class Performed:
    """A performer that notes the plans. raising: what the first of them raise."""

    def __init__(self, *raising: Exception) -> None:
        self.plans: list[Plan] = []
        self.raising = raising

    async def perform(self, _snapshot: Snapshot, plan: Plan) -> None:
        self.plans.append(plan)
        if len(self.plans) <= len(self.raising):
            raise self.raising[len(self.plans) - 1]


def reconciler(performed: Performed) -> Reconciler:
    store = Store()
    store.put(RLJOB, manifest())
    heads, performer = cast(Heads, None), cast(Performer, performed)
    return Reconciler(store, heads, performer, SETTINGS, lambda *_: None, lambda _: None, lambda: NOW)


def said(plan: Plan) -> Condition:
    assert plan.status is not None
    return next(each for each in plan.status.conditions if each.type == "Stalled")


@in_loop
async def test_a_decision_that_raises_is_told_and_tried_again_by_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*_: Any) -> Plan:
        raise BUG

    monkeypatch.setattr(reconcile_module, "decide", raises)
    performed = Performed()
    with pytest.raises(AttributeError, match="no attribute 'get'"):
        await reconciler(performed).reconcile(Key("team", "job"))
    (plan,) = performed.plans
    assert (said(plan).reason, "no attribute 'get'" in said(plan).message) == ("OperatorError", True)
    assert [(event.reason, event.warning) for event in plan.events] == [("OperatorError", True)]


@in_loop
async def test_so_is_what_raises_while_it_is_carried_out() -> None:
    performed = Performed(BUG)
    with pytest.raises(AttributeError):
        await reconciler(performed).reconcile(Key("team", "job"))
    assert said(performed.plans[-1]).reason == "OperatorError"
    status = performed.plans[-1].status
    assert status is not None
    assert status.operator == SETTINGS.operator_namespace, "also what is said first claims the job"


@pytest.mark.parametrize("status", [None, 500])
@in_jumping_loop
async def test_a_head_that_takes_nothing_is_told_of_at_once_where_it_says_so_and_else_after_a_while(
    status: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile_module, "decide", lambda *_: Plan(end="job-a1"))
    error = HeadUnreachable("words", status=status)
    performed, key = Performed(), Key("team", "job")
    looks = reconciler(performed)
    for _ in range(2):
        performed.raising, performed.plans = (Refused(error, "7"),), []
        with pytest.raises(HeadUnreachable):
            await looks.reconcile(key)
        assert len(performed.plans) == (1 if status is None else 2)
    await asyncio.sleep(FAILING_SECONDS)
    performed.plans = []
    with pytest.raises(HeadUnreachable):
        await looks.reconcile(key)
    _, told = performed.plans
    assert told.status is not None
    assert "words" in told.status.conditions[0].message


@in_loop
async def test_nor_is_it_a_bug_where_an_object_is_refused_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile_module, "decide", lambda *_: Plan(end="job-a1"))
    refused, error = Refused(Forbidden("no", status=403), "7"), HeadUnreachable("words", status=500)
    performed = Performed(refused, Refused(error, "7"))
    with pytest.raises(HeadUnreachable):
        await reconciler(performed).reconcile(Key("team", "job"))
    _, rest, told = performed.plans
    assert rest.end == "job-a1", "what needs no object is done without it"
    assert told.status is not None
    assert conditions(told.status)["Ready"] == ("False", "DriverNotHeard")
