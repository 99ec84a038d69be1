"""Which losses the driver repairs by itself, in which order, and when it leaves them to its supervisor."""

from dataclasses import dataclass, field
from functools import partial

import pytest

from rljob_api.v1alpha1.recovery import Recovery
from rljob_trainer.errors import EngineLost, InfrastructureError, RankLost, RewardsLost, WorkerLost
from rljob_trainer.rollouts.repair import Repair

ENGINE = EngineLost("engine-0 died", worker="engine-0")
REWARDS = RewardsLost("rewards died", worker="rewards")
RANK = RankLost("rank-1 died", worker="rank-1")


@dataclass
class Site:
    """Engines, rollout host and heartbeats at once: raises `losses` one after the other, in work and in repairs alike.

    diagnosis: which loss the heartbeats show.
    """

    losses: list[InfrastructureError] = field(default_factory=list)
    diagnosis: WorkerLost | None = None
    done: list[str] = field(default_factory=list)
    spare_lives: bool = True

    def act(self, what: str) -> None:
        self.done.append(what)
        if self.losses:
            raise self.losses.pop(0)

    def repair(self) -> Repair:
        host = partial(self.act, "replace rewards")
        return Repair(Recovery(), Engines(self), host, lambda: self.diagnosis, worth_spare=False)


@dataclass
class Engines:
    site: Site

    def place(self, name: str) -> str:
        """A spare has another name than the engine that it stands in for."""
        return "0"

    def replace(self, name: str) -> None:
        self.site.act(f"replace {name}")

    def keep_spare(self) -> bool:
        self.site.done.append("keep spare")
        return self.site.spare_lives


def work(site: Site) -> list[str]:
    site.repair().run(lambda: site.act("work"))
    return site.done


@pytest.mark.parametrize(("loss", "repair"), [(ENGINE, "replace engine-0"), (REWARDS, "replace rewards")])
def test_work_is_done_again_after_a_repair(loss: WorkerLost, repair: str):
    assert work(Site([loss])) == ["work", repair, "work"]


def test_a_failure_is_its_cause_if_the_heartbeats_show_one():
    assert work(Site([InfrastructureError("a connection broke")], diagnosis=ENGINE)) == [
        "work", "replace engine-0", "work",
    ]  # fmt: skip


def test_a_failure_without_a_lost_worker_is_raised():
    site = Site([InfrastructureError("the volume is slow")])
    with pytest.raises(InfrastructureError, match="slow"):
        work(site)
    assert site.done == ["work"]


def test_a_loss_during_a_repair_is_repaired_first_and_the_repair_begins_again():
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


def test_a_durable_checkpoint_begins_the_count_again():
    site = Site()
    repair = site.repair()
    for _ in range(5):
        site.losses.append(ENGINE)
        repair.run(lambda: site.act("work"))
        repair.durable()
    assert site.done.count("replace engine-0") == 5
