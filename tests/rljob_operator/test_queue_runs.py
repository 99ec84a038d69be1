"""The work queue, on a clock that jumps: no test waits, and every time is exact."""

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_operator.runtime.queue import Backoff, WorkQueue
from tests.rljob_operator.loops import in_jumping_loop


class Refused(Exception):
    def __init__(self, retry_after: float | None = None) -> None:
        super().__init__("refused")
        self.retry_after = retry_after


@dataclass
class Work:
    """Runs that take `seconds` and note when they begin. errors: what the next runs of a key raise at their end."""

    seconds: float = 1.0
    begun: list[tuple[str, float]] = field(default_factory=list)
    running: Counter[str] = field(default_factory=Counter)
    at_a_time: int = 0  # the most runs of one key
    errors: defaultdict[str, list[BaseException]] = field(default_factory=lambda: defaultdict(list))

    async def __call__(self, key: str) -> None:
        self.begun.append((key, now()))
        self.running[key] += 1
        self.at_a_time = max(self.at_a_time, self.running[key])
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.running[key] -= 1
        if self.errors[key]:
            raise self.errors[key].pop(0)

    def times(self, key: str) -> list[float]:
        return [begun for name, begun in self.begun if name == key]


def now() -> float:
    return asyncio.get_running_loop().time()


@in_jumping_loop
async def test_who_is_not_at_work_neither_counts_nor_times_what_is_added() -> None:
    waits: list[float] = []
    work = Work()
    queue = WorkQueue(work, waited=waits.append)
    queue.add("a")
    queue.add_after("b", 10)
    await asyncio.sleep(3600)
    assert len(queue) == 0
    queue.start()
    queue.add("c")
    await asyncio.sleep(100)
    assert work.begun == [("c", 3600)]
    assert waits == [0]
    await queue.stop(grace=0)
    queue.add("a")
    assert len(queue) == 0


@in_jumping_loop
async def test_it_has_caught_up_when_the_last_run_that_is_due_has_begun() -> None:
    queue = WorkQueue(Work(seconds=10), workers=2)
    early = asyncio.create_task(queue.caught_up())
    await asyncio.sleep(100)
    assert not early.done(), "it has not been started"
    begun = asyncio.get_running_loop().time()
    queue.start()
    for key in "abcde":
        queue.add(key)
    await queue.caught_up()
    assert asyncio.get_running_loop().time() - begun == 20
    queue.add("a")
    queue.add("b")
    await queue.caught_up()
    assert asyncio.get_running_loop().time() - begun == 30


@in_jumping_loop
async def test_failures_wait_longer_each_time_until_a_success() -> None:
    work, failures = Work(seconds=0), []
    work.errors["a"] = [Refused() for _ in range(4)] + [asyncio.CancelledError()]
    queue = WorkQueue(work, backoff=Backoff(first=1, cap=5, part=max), failed=lambda *failure: failures.append(failure))
    queue.start()
    queue.add("a")
    await asyncio.sleep(100)
    assert work.times("a") == [0, 1, 3, 7, 12, 17]
    assert [(key, delay) for key, _, delay in failures] == [("a", 1), ("a", 2), ("a", 4), ("a", 5), ("a", 5)]
    work.errors["a"] = [Refused()]
    queue.add("a")
    await asyncio.sleep(100)
    assert work.times("a")[6:] == [100, 101]


@in_jumping_loop
async def test_failures_in_a_burst_of_news_count_once() -> None:
    work, delays = Work(seconds=0), list[float]()
    work.errors["a"] = [Refused() for _ in range(12)]
    queue = WorkQueue(
        work,
        backoff=Backoff(first=1, cap=300, part=max),
        failed=lambda *failure: delays.append(round(failure[2], 2)),
    )
    queue.start()
    queue.add("a")
    for _ in range(9):
        await asyncio.sleep(0.0625)
        queue.add("a")
    await asyncio.sleep(100)
    assert work.times("a")[10:] == [1, 3, 7], "the backoff goes on as it began"
    assert (max(delays[:10]), delays[10:]) == (1, [2, 4])


@in_jumping_loop
async def test_an_add_ends_a_backoff_early_but_not_what_the_server_asked_for() -> None:
    work = Work(seconds=0)
    work.errors["failed"] = [Refused()]
    work.errors["throttled"] = [Refused(retry_after=20)]
    queue = WorkQueue(work, backoff=Backoff(first=50, cap=50, part=max))
    queue.start()
    queue.add("failed")
    queue.add("throttled")
    await asyncio.sleep(10)
    queue.add("failed")
    queue.add("throttled")
    await asyncio.sleep(10)
    assert work.times("failed") == [0, 10]
    assert work.times("throttled") == [0, 20]


@in_jumping_loop
async def test_stopping_lets_the_running_end_and_begins_no_other() -> None:
    work = Work(seconds=10)
    queue = WorkQueue(work, workers=1)
    queue.start()
    queue.add("a")
    queue.add("a")
    queue.add("b")
    queue.add_after("c", 1)
    await asyncio.sleep(5)
    assert queue.longest_run() == 5
    await queue.stop(grace=60)
    assert now() == 10
    late = WorkQueue(work)
    late.start()
    late.add("d")
    await asyncio.sleep(1)
    await late.stop(grace=3)
    assert (now(), work.running["d"]) == (14, 0), "what takes longer is cancelled"
    await asyncio.sleep(100)
    queue.start()  # whoever wanted to begin it was late
    await asyncio.sleep(100)
    assert work.begun == [("a", 0), ("d", 10)]
    assert queue.longest_run() == 0


STEPS = st.lists(
    st.tuples(
        st.floats(0, 5),  # seconds before it
        st.sampled_from("abc"),
        st.one_of(st.none(), st.floats(0, 20)),  # add, or add_after
    ),
    max_size=25,
)


@settings(deadline=None)
@given(
    steps=STEPS,
    workers=st.integers(1, 3),
    seconds=st.sampled_from([0, 0.5, 7]),
    errors=st.lists(st.sampled_from([None, 0.5, 30.0]), max_size=6),
)
def test_no_key_runs_twice_at_a_time_and_no_add_is_lost(
    steps: list[tuple[float, str, float | None]], workers: int, seconds: float, errors: list[float | None]
) -> None:
    @in_jumping_loop
    async def schedule() -> None:
        work = Work(seconds)
        work.errors["a"] = [Refused(retry_after) for retry_after in errors]
        queue = WorkQueue(work, workers=workers)
        queue.start()
        adds: list[tuple[str, int]] = []  # the key, and how many runs had begun
        for pause, key, later in steps:
            await asyncio.sleep(pause)
            adds.append((key, len(work.begun)))
            queue.add(key) if later is None else queue.add_after(key, later)
        await asyncio.sleep(10_000)
        assert len(queue) == 0
        assert work.at_a_time <= 1
        for key, begun in adds:
            assert key in [name for name, _ in work.begun[begun:]]

    schedule()
