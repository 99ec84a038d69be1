"""Groups in spite of lost engines and rollout hosts. Real Ray, a real host and journal; engines that need no model."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray

from rljob_api.v1alpha1.model import Tokenizer as TokenizerSpec
from rljob_trainer.engines.calls import Subscriber
from rljob_trainer.engines.engine import EngineSettings, Request
from rljob_trainer.engines.engine_host import EngineProcess
from rljob_trainer.errors import EngineLost, InfrastructureError
from rljob_trainer.journal import Journal, Used
from rljob_trainer.rank.client import RankClient
from rljob_trainer.rollouts.calls import Order, PolicyName
from rljob_trainer.rollouts.engine_client import EngineClient
from rljob_trainer.rollouts.repair import Repair
from rljob_trainer.rollouts.rollout_client import RolloutClient
from rljob_trainer.rollouts.rollout_host import RolloutSettings
from rljob_trainer.rollouts.rollouts import Rollout, Rollouts
from rljob_trainer.rollouts.weight_sync import Synced
from rljob_trainer.types import Sampling, Task
from rljob_trainer.volume import Volume
from rljob_trainer.workers.context import WorkerContext
from rljob_trainer.workers.heartbeats import Heartbeats
from rljob_trainer.workers.roster import Roster
from rljob_trainer.workers.waiting import wait_for
from rljob_trainer.workers.worker import Worker
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.ray_support import own_ray
from tests.rljob_trainer.rollout_support import make_policy, write_model_dir
from tests.rljob_trainer.steady_engine import SteadyHost

TASKS, SAMPLES = 6, 2

SILENT_AFTER = 20.0  # seconds; workers that live answer in time even where tests share two busy cores


@dataclass
class Engines:
    """What Rollouts knows of an EngineClient."""

    roster: Roster
    notes: Path
    pace: float
    replaced: int = 0
    running: bool = True

    def __post_init__(self) -> None:
        self.workers = [self._start(f"engine-{index}") for index in range(2)]

    def place(self, name: str) -> str:
        return name

    def settle(self) -> None: ...

    def start(self) -> None: ...

    def _start(self, name: str) -> Worker[EngineProcess]:
        return self.roster.start(name, "s", SteadyHost, {}, name, str(self.notes), self.pace)

    def replace(self, name: str) -> None:
        index = [worker.name for worker in self.workers].index(name)
        self.roster.end(self.workers[index])
        self.workers[index] = self._start(name)
        self.replaced += 1

    def keep_spare(self) -> bool:
        return False


class Weights:
    """A sync that has nothing to send."""

    def begin(self, version: int, engines: object, update: object = None) -> Callable[[], Synced]:
        return lambda: Synced([], [])


class CountedClient(RolloutClient):
    replaced = 0

    def replace(self) -> None:
        self.replaced += 1
        super().replace()


@dataclass
class Site:
    """Two engines and a rollout host, ready to work."""

    volume: Volume
    engines: Engines
    host: CountedClient
    heartbeats: Heartbeats

    def rollouts(self, seconds: float = 100.0) -> Rollouts:
        heartbeats, policy = self.heartbeats, make_spec().recovery
        repair = Repair(policy, self.engines, self.host.replace, heartbeats.diagnose, worth_spare=False)
        return Rollouts(
            self.engines, self.host, Weights(), repair,  # type: ignore[arg-type]
            heartbeats=heartbeats, phase=lambda _: nullcontext(), shares_memory=False, seconds=seconds,
        )  # fmt: skip

    def collect(self, step: int, seconds: float = 100.0, enough: int = TASKS) -> Rollout:
        tasks = [Task(f"0/{i}/0", [], np.arange(i, i + 3, dtype=np.int32), "", {}, "t") for i in range(TASKS)]
        order = Order("training", PolicyName(0, f"policy {step}"), tasks, SAMPLES, Sampling(max_tokens=4))
        return self.rollouts(seconds).collect(order, lambda groups: enough - len(groups))

    def begun(self) -> list[str]:
        """Groups that engines began to make, in order, repetitions included."""
        return self.engines.notes.read_text().split() if self.engines.notes.exists() else []

    def process(self, worker: Worker[Any]) -> psutil.Process:
        return psutil.Process(wait_for(worker.beat(), 60.0, "a worker of a test").pid)

    @contextmanager
    def after(self, groups: int, strike: Callable[[], None]) -> Iterator[None]:
        """Strike when so many groups were begun, in the middle of the last one."""

        def watch() -> None:
            while len(self.begun()) < groups:
                time.sleep(0.02)
            time.sleep(self.engines.pace / 2)
            strike()

        thread = threading.Thread(target=watch)
        thread.start()
        yield
        thread.join()


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with own_ray("rollouts"):
        yield


@contextmanager
def site_in(folder: Path, pace: float, **spec: Any) -> Iterator[Site]:
    from rljob_trainer.data.tokenizer import build_tokenizer

    build_tokenizer(TokenizerSpec(), ["abcdefgh"]).save_pretrained(folder / "model")
    (folder / "attempts").mkdir()
    heartbeats = Heartbeats(SILENT_AFTER)
    roster = Roster(1, 60.0, heartbeats, fence=lambda: None)
    try:
        job = make_spec(**spec)
        context = WorkerContext(job, "cpu", 1, roster, heartbeats)
        settings = RolloutSettings(
            job.rewards, str(folder / "model"), str(folder), {}, str(folder / "log"), str(folder), "settings", 0,
            deterministic=False, engine_runs=256,
        )  # fmt: skip
        host = CountedClient(context, settings, 1, 0)
        host.load()
        engines = Engines(roster, folder / "begun", pace)
        host.ready()
        yield Site(Volume(folder), engines, host, heartbeats)
    finally:
        roster.end_all()
        heartbeats.close()


def assert_whole(rollout: Rollout) -> None:
    names = [f"0/{i}/0" for i in range(TASKS)]
    assert [group.summary.task_id for group in rollout.groups] == names
    assert [ray.get(group.bundle)[group.index].task.id for group in rollout.groups] == names


def test_a_killed_engine_costs_the_group_that_it_was_making_and_the_journal_has_all(tmp_path: Path):
    with site_in(tmp_path, pace=1.0) as site:
        with site.after(4, site.process(site.engines.workers[0]).kill):
            rollout = site.collect(1)
        assert_whole(rollout)
        assert site.engines.replaced == 1
        assert set(site.begun()) == {str(i) for i in range(TASKS)}
        assert len(site.begun()) == TASKS + 1, "the one that it was making"
        again = site.collect(1)
        assert_whole(again)
        assert len(site.begun()) == TASKS + 1, "nothing is made again for the same policy and settings"
        assert digests(rollout) == digests(again)


def test_the_slowest_groups_are_aborted_once_enough_are_finished_and_leave_no_record(tmp_path: Path):
    with site_in(tmp_path, pace=0.5) as site:
        rollout = site.collect(1, enough=2)
        made = digests(rollout)
        assert 2 <= len(made) < TASKS
        assert list(made) == sorted(made)
        assert set(rollout.finished) == set(made)
        again = site.collect(1, enough=2)  # a driver that died before it used them
        assert digests(again).items() >= made.items(), "one more may have been finished before the others were aborted"
        assert again.journaled >= len(made)
        whole = site.collect(1)
        assert_whole(whole)
        assert len(made) <= whole.journaled < TASKS, "most of the others were aborted and left nothing"


def digests(rollout: Rollout) -> dict[str, str]:
    return {group.summary.task_id: group.summary.digest for group in rollout.groups}


SLOW = """
import time

def compute_score(**_):
    time.sleep(2.0)
    return 0.0
"""


@pytest.mark.slow
def test_a_slow_reward_keeps_no_finished_group_from_the_journal(tmp_path: Path):
    """Groups are made faster than they are scored, and those that the engine has handed over survive it."""
    rewards = {"functions": [{"name": "slow", "source": SLOW}], "processes": 2 * SAMPLES}
    with site_in(tmp_path, pace=0.5, rewards=rewards) as site:
        with site.after(TASKS - 1, site.process(site.engines.workers[0]).kill):
            rollout = site.collect(1)
        assert_whole(rollout)
        assert site.engines.replaced == 1
        assert len(site.begun()) <= TASKS + 1, "no more than the one that it was making"


@pytest.mark.parametrize("how", ["kill", pytest.param("suspend", marks=pytest.mark.slow)])
def test_a_lost_host_costs_the_episodes_that_it_played_and_is_replaced_once(tmp_path: Path, how: str):
    with site_in(tmp_path, pace=1.5) as site:
        host = site.process(site.host.worker)
        time.sleep(1.5)  # every worker has answered a heartbeat
        with site.after(3, getattr(host, how)):
            assert_whole(site.collect(2))
        assert len(site.begun()) < 2 * TASKS, "what was finished is in the journal"
        assert site.engines.replaced == 0
        assert site.host.replaced == 1
        assert len(Journal(site.volume, 1, from_version=0)) == TASKS * SAMPLES


def test_a_host_that_is_lost_while_it_records_an_update_is_replaced_and_the_record_is_made(tmp_path: Path):
    used = Used("policy 5", 1, "settings", (("0/0/0", "its digest"),), {}, {}, {})
    with site_in(tmp_path, pace=0.1) as site:
        host = site.process(site.host.worker)
        host.suspend()
        recorded = site.rollouts().use(used)
        host.kill()
        recorded()
        assert site.host.replaced == 1
        assert Journal(site.volume, 1, from_version=0).used("policy 5", "settings") == used


@pytest.mark.slow
def test_an_engine_and_the_host_that_freeze_together_are_both_replaced(tmp_path: Path):
    with site_in(tmp_path, pace=1.0) as site:
        engine, host = site.process(site.engines.workers[1]), site.process(site.host.worker)
        time.sleep(1.5)  # every worker has answered a heartbeat

        def freeze() -> None:
            engine.suspend()
            time.sleep(1.5)  # the engine is missed first
            host.suspend()

        with site.after(3, freeze):
            assert_whole(site.collect(4))
        assert site.engines.replaced == 1
        assert site.host.replaced == 1


@pytest.mark.slow
def test_a_deadline_names_those_who_are_busy(tmp_path: Path):
    with site_in(tmp_path, pace=60.0) as site:
        for worker in site.engines.workers:
            site.process(worker)
        names = r"\(engine-0: generate for \d s .*; engine-1: generate for \d s"
        with pytest.raises(InfrastructureError, match=rf"6 of 6 groups .* spec.rollout.deadline.*{names}"):
            site.collect(3, seconds=4.0)


@contextmanager
def one_engine(model: Path) -> Iterator[tuple[EngineClient, Roster]]:
    """An engine hf of that folder, not started yet, and the rank that it belongs to."""
    heartbeats = Heartbeats(SILENT_AFTER)
    roster = Roster(1, 60.0, heartbeats, fence=lambda: None)
    try:
        context = WorkerContext(make_spec(), "cpu", 1, roster, heartbeats)
        ranks = RankClient(context)
        ranks.start()
        engines = EngineClient(context, EngineSettings("hf", str(model), 32), ranks)
        yield engines, roster
    finally:
        roster.end_all()
        heartbeats.close()


@pytest.mark.slow
def test_an_engine_that_cannot_start_leaves_no_process_that_would_try_again(tmp_path: Path):
    """vLLM cannot be started twice in one process, and the next driver would find this one."""
    with one_engine(tmp_path / "no model") as (engines, roster):
        assert "engine-0" in roster
        with pytest.raises(Exception, match="no model"):
            engines.ready()
        assert "engine-0" not in roster
        with pytest.raises(ValueError, match="engine-0"):
            ray.get_actor("engine-0")


@pytest.mark.slow
def test_an_engine_that_failed_beside_the_ranks_starts_again_in_another_process(tmp_path: Path):
    """There its memory may have been theirs for a moment; here its model is complete only later."""
    with one_engine(tmp_path / "model") as (engines, _):
        engines.start(beside=True)
        with pytest.raises(Exception, match="model"):
            wait_for(next(iter(engines._started.values())), 60.0, "an engine of a test")
        make_policy(model := write_model_dir(tmp_path / "model"), seed=0).save_pretrained(model)
        engines.ready()
        assert (engines.running, engines.replaced) == (True, 1)


@pytest.mark.slow
def test_an_engine_that_failed_under_a_former_driver_is_lost_for_the_next(tmp_path: Path):
    heartbeats = Heartbeats(SILENT_AFTER)
    roster = Roster(1, 60.0, heartbeats, fence=lambda: None)
    try:
        context, settings = WorkerContext(make_spec(), "cpu", 1, roster, heartbeats), EngineSettings("hf", "", 32)
        signature = context.signature(settings, 0, context.placement.of_rank(0))
        engine = roster.start("engine-0", signature, SteadyHost, {}, "engine-0", str(tmp_path / "no folder/notes"), 0.0)
        request = Request("a", np.arange(3, dtype=np.int32), Sampling(4), (0,))
        for answer in (
            engine.call_beside("inbox", EngineProcess.subscribe, Subscriber("host", engine)),
            engine.call_beside("inbox", EngineProcess.submit, "host", [request]),
        ):
            wait_for(answer, 60.0, "an engine of a test")
        with pytest.raises(EngineLost, match=r"engine-0 failed to finish: .* failed before: .*no folder"):
            EngineClient(context, settings, RankClient(context)).settle()
    finally:
        roster.end_all()
        heartbeats.close()
