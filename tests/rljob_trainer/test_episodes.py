"""Orders: each task is played, scored and kept once, and whatever goes wrong reaches the driver."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from rljob_trainer.engines.calls import Delivery, Subscriber
from rljob_trainer.environments.environment import Environment, Policy
from rljob_trainer.environments.single_turn import single_turn
from rljob_trainer.errors import InfrastructureError, JobError, RewardError
from rljob_trainer.loop.metrics import cache_metrics, idle_metrics
from rljob_trainer.progress import names
from rljob_trainer.rollouts.calls import NO_CACHE_USE, CacheUse, GroupRef, News, Order, PolicyName
from rljob_trainer.rollouts.episodes import Diary, Episodes, turn_seed
from rljob_trainer.rollouts.generation import Generation
from rljob_trainer.types import Episode, Group, Sampling, Task, Trajectory, Turn
from tests.rljob_trainer.journal_support import group, group_ref, task
from tests.rljob_trainer.rollouts_support import AnsweringEngine, attached, ids

SEED = 3
POLICY = PolicyName(7, "policy 7")
ORDER = Order("training", POLICY, [task(number) for number in range(3)], 2, Sampling(8, temperature=0.5))
VALIDATION = replace(ORDER, purpose="validation", samples=1)


@dataclass
class Site:
    """Everything around Episodes. kept: the tasks of each call of keep. gate: what keep waits for.

    fails: what the scorer raises for task 1.
    """

    engine: AnsweringEngine = field(default_factory=AnsweringEngine)
    kept: list[list[str]] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    keeping: threading.Event = field(default_factory=threading.Event)
    fails: Exception | None = None
    disk_fails: Exception | None = None

    async def score(self, task: Task, episodes: Sequence[Episode]) -> Group:
        if self.fails is not None and task.id == "0/1/0":
            raise self.fails
        return Group(task, tuple(replace(each, reward=float(each.sample)) for each in episodes))

    def keep(self, order: Order, groups: Sequence[Group]) -> list[GroupRef]:
        self.kept.append([each.task.id for each in groups])
        self.keeping.set()
        assert self.gate.wait(10)
        if self.disk_fails is not None:
            raise self.disk_fails
        return [group_ref(each, [each]) for each in groups]

    def start(self, environment: Environment = single_turn, diary: Diary | None = None) -> Episodes:
        host: Any = None
        scorer: Any = self
        generation = Generation(Subscriber("host", host), lambda version: version in (7, 8), whole_requests=False)
        episodes = Episodes(environment, scorer, generation, SEED, self.keep, diary=diary)
        self.engine.deliver = episodes.deliver
        self.gate.set()
        episodes.attach(attached(self.engine))
        return episodes


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def episodes(site: Site) -> Iterator[Episodes]:
    made = site.start()
    yield made
    made.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "episodes"]


def collected(episodes: Episodes, number: int, count: int = len(ORDER.tasks)) -> list[Group]:
    groups: list[GroupRef] = []
    while len(groups) < count:
        news = episodes.news(number, len(groups), 10)
        assert news.groups, "nothing came in time"
        groups += news.groups
    made: Any = [each.bundle for each in groups]
    return [bundle[0] for bundle in made]


def begun(episodes: Episodes, site: Site, order: Order = ORDER) -> int:
    """An order whose requests the engine holds."""
    site.engine.holds = True
    number = episodes.begin(order, ())
    assert site.engine.asked.acquire(timeout=10)
    return number


def by_task(groups: Sequence[Group]) -> list[Group]:
    return sorted(groups, key=lambda group: group.task.id)


# ---- what is made


def test_seeds_depend_on_task_sample_and_turn_and_are_the_same_everywhere():
    assert turn_seed(3, "0/1/0", 0, 0) == 3050294596046115606
    names = [(3, "0/1/0", 0, 0), (4, "0/1/0", 0, 0), (3, "0/1/1", 0, 0), (3, "0/1/0", 1, 0), (3, "0/1/0", 0, 1)]
    assert len({turn_seed(*name) for name in names}) == len(names)
    assert all(0 <= turn_seed(*name) < 2**63 for name in names)


def test_an_order_gives_a_scored_group_for_each_task(episodes, site):
    number = episodes.begin(ORDER, ())
    groups = by_task(collected(episodes, number))
    assert [each.task for each in groups] == ORDER.tasks
    assert [[each.reward for each in made.episodes] for made in groups] == [[0, 1]] * 3
    assert [len(request.seeds) for request in site.engine.requests] == [2] * 3, "the samples of a task share its prompt"
    seed = turn_seed(SEED, "0/2/0", 1, 0)
    assert seed in site.engine.requests[2].seeds
    second = groups[2].episodes[1]
    (part,) = second.trajectories
    assert (second.task_id, second.sample, second.status) == ("0/2/0", 1, "finished")
    assert part.token_ids.tolist() == [2, 3, 4, seed % 1000, 1]
    assert part.in_loss.tolist() == [False] * 3 + [True] * 2
    assert part.versions.tolist() == [-1] * 3 + [7] * 2
    assert part.turns == (Turn(3, 5, 0.5, "stop"),)
    assert episodes.news(number, 0, 0).generated > 0


def test_groups_that_were_made_before_are_there_and_not_played(episodes, site):
    number = episodes.begin(ORDER, [group_ref(group(1), [group(1)])])
    assert len(collected(episodes, number)) == 3
    assert sorted(request.token_ids[0] for request in site.engine.requests) == [0, 2]


def test_groups_that_end_while_others_are_kept_are_kept_together(episodes, site):
    site.gate.clear()
    number = begun(episodes, site)
    site.engine.deliver(site.engine.finish(request=1))
    assert site.keeping.wait(10)
    for request in (2, 0):
        site.engine.deliver(site.engine.finish(request=request))
    assert episodes.news(number, 0, 0.05).groups == [], "the journal has none of them yet"
    site.gate.set()
    assert len(collected(episodes, number)) == 3
    assert [sorted(each) for each in site.kept] == [["0/1/0"], ["0/0/0", "0/2/0"]]


async def two_turns(task: Task, policy: Policy) -> Episode:
    """A tool says 99 between two turns."""
    first = await policy.generate(task.token_ids)
    context = np.concatenate([task.token_ids, first.token_ids, ids(99)])
    second = await policy.generate(context)
    tokens = np.concatenate([context, second.token_ids])
    versions = np.array([-1] * 3 + [7] * 2 + [-1] + [8] * 2, np.int32)
    turns = (Turn(3, 5, policy.temperature, "stop"), Turn(6, 8, policy.temperature, "stop"))
    part = Trajectory(tokens, versions >= 0, np.zeros(8, np.float32), versions, turns)
    return Episode(task.id, policy.sample, (part,))


def test_an_environment_may_take_a_second_turn():
    site = Site()
    episodes = site.start(two_turns)
    try:
        groups = by_task(collected(episodes, episodes.begin(ORDER, ())))
    finally:
        episodes.close()
    for made in groups:
        for one in made.episodes:
            seeds = [turn_seed(SEED, one.task_id, one.sample, turn) % 1000 for turn in range(2)]
            assert one.trajectories[0].token_ids[3:].tolist() == [seeds[0], 1, 99, seeds[1], 1]
    assert [len(request.seeds) for request in site.engine.requests] == [2] * 3 + [1] * 6, "contexts differ by then"


def test_what_is_made_for_the_loss_is_the_samples_of_training_orders():
    """Limits leave nothing out of a validation, nor a baseline."""
    trains: list[tuple[str, int, bool]] = []

    async def noted(task: Task, policy: Policy) -> Episode:
        trains.append((task.id, policy.sample, policy.trains))
        return await single_turn(task, policy)

    episodes = Site().start(noted)
    made = []
    try:
        for order in (replace(ORDER, baseline=True), VALIDATION):
            trains.clear()
            collected(episodes, episodes.begin(order, ()))
            made.append({(sample, each) for _, sample, each in trains})
    finally:
        episodes.close()
    assert made == [{(0, True), (1, True), (2, False)}, {(0, False)}]


class Notebook:
    """A Diary. played: by task and sample."""

    def __init__(self) -> None:
        self.played: dict[tuple[str, int], Episode] = {}

    def find_played(self, order: Order, task: Task, sample: int) -> Episode | None:
        return self.played.get((task.id, sample))

    def keep_played(self, order: Order, task: Task, episode: Episode) -> None:
        self.played[task.id, episode.sample] = episode


def test_an_episode_that_was_played_before_is_only_scored():
    notebook, groups, site = Notebook(), [], Site()
    for left_out in (None, ("0/1/0", 1)):
        notebook.played.pop(left_out or ("", 0), None)
        site = Site()
        episodes = site.start(two_turns, notebook)
        try:
            groups.append(by_task(collected(episodes, episodes.begin(ORDER, ()))))
            collected(episodes, episodes.begin(VALIDATION, ()))
        finally:
            episodes.close()
    training = [request for request in site.engine.requests if request.sampling == ORDER.sampling]
    assert len(training) == 2 + 6, "one episode, and the validation, which is not written down"
    assert len(notebook.played) == 6
    assert repr(groups[0]) == repr(groups[1])


# ---- orders that come again, and that end


def test_the_same_order_is_not_repeated(episodes, site):
    number = episodes.begin(ORDER, ())
    assert episodes.same(replace(ORDER)) == number
    others: list[dict[str, Any]] = [
        {"purpose": "validation"}, {"policy": PolicyName(7, "other")}, {"tasks": ORDER.tasks[:2]}, {"samples": 3},
        {"sampling": Sampling(9)},
    ]  # fmt: skip
    assert [episodes.same(replace(ORDER, **other)) for other in others] == [None] * 5


def test_the_end_of_an_order_aborts_its_requests_and_leaves_others_alone(episodes, site):
    training, validation = begun(episodes, site), begun(episodes, site, VALIDATION)
    episodes.detach()
    assert len(site.engine.aborted) == 3
    with pytest.raises(InfrastructureError, match=f"order {validation} was ended"):
        episodes.news(validation, 0, 0)
    episodes.end(others_than=POLICY)
    site.engine.answer()
    assert len(collected(episodes, training)) == 3
    episodes.end(others_than=PolicyName(8, "policy 8"))
    assert episodes.same(ORDER) is None


def test_an_order_that_has_enough_is_aborted_and_nothing_of_the_rest_is_kept(episodes, site):
    """Two of three groups are answered; the driver waits for two."""
    number = begun(episodes, site)
    site.engine.answer(1)
    (news,) = [episodes.news(number, 0, 10, enough=2)]
    assert len(news.groups) == 2
    episodes.abort(number)
    assert len(site.engine.aborted) == 1
    site.engine.answer()  # too late
    assert sum(map(len, site.kept)) == 2
    assert episodes.same(ORDER) is None
    with pytest.raises(InfrastructureError, match="was ended"):
        episodes.news(number, 2, 0)
    episodes.abort(number)  # of a driver that asks again: nothing happens


def test_a_number_is_given_to_one_order_alone(episodes):
    first = episodes.begin(ORDER, ())
    episodes.end()
    assert episodes.begin(ORDER, ()) != first


# ---- what goes wrong


@pytest.mark.parametrize("where", ["scorer", "environment", "journal"])
def test_an_error_ends_the_order_and_reaches_the_driver(site, where):
    error = RewardError(f"the {where} failed", field="spec.rewards")

    async def environment(task: Task, policy: Policy) -> Episode:
        episode = await single_turn(task, policy)
        if where == "environment" and (task.id, policy.sample) == ("0/1/0", 1):
            raise error
        return episode

    site.fails = error if where == "scorer" else None
    site.disk_fails = error if where == "journal" else None
    episodes = site.start(environment)
    try:
        number = begun(episodes, site)
        site.engine.deliver(site.engine.finish(*([1] if where == "environment" else []), request=1))
        with pytest.raises(RewardError, match=f"the {where} failed"):
            episodes.news(number, 0, 10)
        assert episodes.same(ORDER) is None, "it is begun again"
        rest = 3 if where == "environment" else 2
        assert wait(lambda: len(site.engine.aborted) == rest), "what no episode waits for is not generated"
        site.fails, site.disk_fails, where = None, None, "nothing"
        again = episodes.begin(ORDER, ())
        assert wait(lambda: len(site.engine.requests) >= 3)
        site.engine.answer()
        assert len(collected(episodes, again)) == 3
    finally:
        episodes.close()


def wait(condition: Callable[[], bool]) -> bool:
    pause = threading.Event()
    return any(condition() or pause.wait(0.01) for _ in range(1000))


def test_what_the_prefix_cache_had_of_the_prompts_is_counted(episodes):
    number = episodes.begin(ORDER, ())
    assert len(collected(episodes, number)) == 3
    turns = ORDER.samples * len(ORDER.tasks)
    prompts = ORDER.samples * sum(len(each.token_ids) for each in ORDER.tasks)
    use = episodes.news(number, 3, 0).cache
    assert use == CacheUse(prompts, turns)
    assert cache_metrics([use, CacheUse(prompts, 0)]) == {"rollout/prefix_cache_hits": turns / (2 * prompts)}
    assert cache_metrics([NO_CACHE_USE]) == {}


def test_engines_are_idle_while_all_episodes_wait_for_their_environments(site):
    count = ORDER.samples * len(ORDER.tasks)
    all_wait = asyncio.Barrier(count)

    async def sleeps(task: Task, policy: Policy) -> Episode:
        await single_turn(task, policy)
        await all_wait.wait()
        await asyncio.sleep(0.5)
        return await single_turn(task, policy)

    episodes = site.start(sleeps)
    try:
        number = episodes.begin(ORDER, ())
        assert len(collected(episodes, number)) == 3
        news = episodes.news(number, 3, 0)
        assert sum(len(request.seeds) for request in site.engine.requests) == 2 * count
        assert news.generated >= 0.5
        assert 0 < news.engine_seconds <= news.generated - 0.5
        step = {names.TIME_STEP: 2 * news.generated}
        assert idle_metrics(step, news.engine_seconds)[names.IDLE_ENGINES] >= 0.5 + 0.5 / step[names.TIME_STEP]
    finally:
        episodes.close()


def test_an_engine_that_fails_is_reported_until_others_are_attached(episodes, site):
    number = begun(episodes, site)
    failed = Delivery("engine-0", "host", (), InfrastructureError("CUDA error"))
    episodes.deliver(failed)
    assert episodes.news(number, 0, 10) == News([], 0.0, ("engine-0", "CUDA error"))
    other = AnsweringEngine("other")
    other.deliver = episodes.deliver
    episodes.attach(attached(other))
    assert len(collected(episodes, number)) == 3
    assert episodes.news(number, 3, 0).engine_failed is None


def test_a_mistake_in_the_job_that_an_engine_finds_ends_all_orders(episodes, site):
    numbers = [begun(episodes, site), begun(episodes, site, VALIDATION)]
    episodes.deliver(Delivery("engine-0", "host", (), JobError("no room", field="spec.data.maxPromptTokens")))
    for number in numbers:
        with pytest.raises(JobError, match="no room"):
            episodes.news(number, 0, 10)
