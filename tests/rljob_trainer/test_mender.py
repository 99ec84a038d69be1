"""Which losses the driver mends by itself, in which order, and when it leaves them to its supervisor."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from rljob_api.v1alpha1.recovery import Recovery
from rljob_trainer.controller.mender import Mender
from rljob_trainer.errors import EngineLost, InfrastructureError, RankLost, RewardsLost, WorkerLost

ENGINE = EngineLost("engine-0 died", worker="engine-0")
REWARDS = RewardsLost("rewards died", worker="rewards")
RANK = RankLost("rank-1 died", worker="rank-1")


@dataclass
class Site:
    """Engines, scorer and pulse at once: raises `losses` one after the other, in work and in repairs alike.

    diagnosis: what the pulse finds when somebody asks.
    """

    losses: list[InfrastructureError] = field(default_factory=list)
    diagnosis: WorkerLost | None = None
    done: list[str] = field(default_factory=list)

    def act(self, what: str) -> None:
        self.done.append(what)
        if self.losses:
            raise self.losses.pop(0)

    def diagnose(self) -> WorkerLost | None:
        return self.diagnosis

    def mender(self) -> Mender:
        scorer = _Replaced(lambda: self.act("replace rewards"))
        engines = _Replaced(lambda name: self.act(f"replace {name}"))
        return Mender(Recovery(), engines, scorer, self)  # type: ignore[arg-type]


@dataclass
class _Replaced:
    replace: Callable[..., None]

    def keep_spare(self) -> None:
        """Nothing is lost here that a spare could stand in for."""


def work(site: Site) -> list[str]:
    site.mender().run(lambda: site.act("work"))
    return site.done


@pytest.mark.parametrize(("loss", "repair"), [(ENGINE, "replace engine-0"), (REWARDS, "replace rewards")])
def test_work_is_done_again_after_a_repair(loss: WorkerLost, repair: str):
    assert work(Site([loss])) == ["work", repair, "work"]


def test_a_failure_is_its_cause_where_the_pulse_knows_one():
    assert work(Site([InfrastructureError("a connection broke")], diagnosis=ENGINE)) == [
        "work", "replace engine-0", "work",
    ]  # fmt: skip


def test_a_failure_that_nobody_died_of_is_raised():
    site = Site([InfrastructureError("the volume is slow")])
    with pytest.raises(InfrastructureError, match="slow"):
        work(site)
    assert site.done == ["work"]


def test_a_loss_during_a_repair_is_mended_first_and_the_repair_begun_anew():
    done = work(Site([REWARDS, ENGINE]))
    assert done == ["work", "replace rewards", "replace engine-0", "replace rewards", "work"]


def test_a_rank_is_its_supervisors():
    site = Site([RANK])
    with pytest.raises(RankLost):
        work(site)
    assert site.done == ["work"]


def test_the_third_loss_without_a_durable_checkpoint_is_its_supervisors_too():
    site = Site([ENGINE, ENGINE, ENGINE])
    with pytest.raises(EngineLost):
        work(site)
    assert site.done == ["work", "replace engine-0", "replace engine-0"]


def test_a_durable_checkpoint_begins_the_count_anew():
    site = Site()
    mender = site.mender()
    for _ in range(5):
        site.losses.append(ENGINE)
        mender.run(lambda: site.act("work"))
        mender.durable()
    assert site.done.count("replace engine-0") == 5
