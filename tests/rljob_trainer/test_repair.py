"""Which losses the driver mends by itself, in which order, and when it leaves them to its supervisor."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from rljob_api.v1alpha1.recovery import Recovery
from rljob_trainer.errors import EngineLost, InfrastructureError, RankLost, RewardsLost, WorkerLost
from rljob_trainer.rollouts.repair import Repair

ENGINE = EngineLost("engine-0 died", worker="engine-0")
REWARDS = RewardsLost("rewards died", worker="rewards")
RANK = RankLost("rank-1 died", worker="rank-1")


@dataclass
class Site:
    """Engines, scorer and heartbeats at once: raises `losses` one after the other, in work and in repairs alike.

    diagnosis: what the heartbeats finds when somebody asks.
    """

    losses: list[InfrastructureError] = field(default_factory=list)
    diagnosis: WorkerLost | None = None
    done: list[str] = field(default_factory=list)
    spare_lives: bool = True

    def act(self, what: str) -> None:
        self.done.append(what)
        if self.losses:
            raise self.losses.pop(0)

    def keep_spare(self) -> bool:
        self.done.append("keep spare")
        return self.spare_lives

    def diagnose(self) -> WorkerLost | None:
        return self.diagnosis

    def repair(self) -> Repair:
        scorer = _Replaced(lambda: self.act("replace rewards"))
        engines = _Replaced(lambda name: self.act(f"replace {name}"), self.keep_spare)
        return Repair(Recovery(), engines, scorer, self, worth_spare=False)  # type: ignore[arg-type]


@dataclass
class _Replaced:
    replace: Callable[..., None]
    keep_spare: Callable[[], bool] | None = None

    def place(self, name: str) -> str:
        """A spare has another name than the engine that it stands in for."""
        return "0"


def work(site: Site) -> list[str]:
    site.repair().run(lambda: site.act("work"))
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
    site = Site([ENGINE, EngineLost("engine-1 died", worker="engine-1"), ENGINE])
    with pytest.raises(EngineLost):
        work(site)
    assert site.done == ["work", "replace engine-0", "replace engine-1"]


def test_a_spare_is_kept_once_there_is_something_to_lose_or_lost():
    site = Site()
    repair = site.repair()
    repair.step_done()
    assert site.done == []
    repair.durable()
    repair.step_done()
    assert site.done == ["keep spare"]


def test_a_spare_that_dies_is_followed_by_none_before_the_next_checkpoint():
    site = Site(spare_lives=False)
    repair = site.repair()
    repair.durable()
    for _ in range(3):
        repair.step_done()
    assert site.done == ["keep spare"]
    repair.durable()
    repair.step_done()
    assert site.done == ["keep spare"] * 2


def test_a_lost_engine_gets_the_next_one_a_spare_after_the_next_step():
    site = Site([ENGINE])
    repair = site.repair()
    repair.run(lambda: site.act("work"))
    repair.step_done()
    assert site.done == ["work", "replace engine-0", "work", "keep spare"]


def test_a_durable_checkpoint_begins_the_count_anew():
    site = Site()
    repair = site.repair()
    for _ in range(5):
        site.losses.append(ENGINE)
        repair.run(lambda: site.act("work"))
        repair.durable()
    assert site.done.count("replace engine-0") == 5
