"""Who may carry out a plan."""

from typing import Any, cast

import pytest

from rljob_operator.heads import Heads
from rljob_operator.kube import Connection, Fenced, Kube
from rljob_operator.perform import Performer
from rljob_operator.plan import Plan, Submission
from rljob_operator.store import Store
from tests.rljob_operator.kube_server import KubeObjects, MemoryConnection
from tests.rljob_operator.loops import in_jumping_loop
from tests.rljob_operator.snapshots import snapshot


class Told:
    """Heads that note what they are told."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def note(*_: object) -> None:
            self.words.append(name)

        return note


def refuses() -> None:
    raise Fenced("the lease is another's")


def performer(told: Told, **fence: Any) -> Performer:
    return Performer(Kube(cast(Connection, MemoryConnection(KubeObjects())), **fence), cast(Heads, told), Store())


START = Plan(submit=Submission("job-a1", 1))


@pytest.mark.parametrize(("plan", "word"), [(START, "submit"), (Plan(stop=True), "stop"), (Plan(end="a"), "end")])
@in_jumping_loop
async def test_a_head_is_told_by_the_leader_alone(plan: Plan, word: str) -> None:
    told = Told()
    await performer(told).perform(snapshot(), plan)
    assert told.words == [word]
    with pytest.raises(Fenced):
        await performer(told, fence=refuses).perform(snapshot(), plan)
    assert told.words == [word]
