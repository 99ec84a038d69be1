"""Which engine gets which request, and what becomes of requests whose engine or whose episode is gone."""

import asyncio
from typing import Any

import pytest

from rljob_trainer.engines.calls import Subscriber
from rljob_trainer.errors import InfrastructureError
from rljob_trainer.rollouts.engine_time import EngineTime
from rljob_trainer.rollouts.generation import Context, Generation
from rljob_trainer.types import Sampling
from tests.rljob_trainer.rollouts_support import FakeEngine, attached, ids

GREEDY, WARM = Sampling(8, temperature=0), Sampling(8)


def play(scenario: Any, *, whole_requests: bool = False, incarnation: str = "host", runs: int | None = None) -> None:
    async def playing() -> None:
        host: Any = None
        generation = Generation(
            Subscriber(incarnation, host), lambda version: version in (7, 8), whole_requests=whole_requests, runs=runs
        )
        await asyncio.wait_for(scenario(generation, FakeEngine("one"), FakeEngine("two")), 10)

    asyncio.run(playing())


def played(scenario: Any) -> Any:
    """A test with a generation and two engines."""

    def test() -> None:
        play(scenario)

    return test


def ask(generation: Generation, owner: str, *seeds: int, prompt: int = 5, sampling: Sampling = WARM) -> list[Any]:
    """Turns that begin in this tick of the loop."""
    calls = (generation.generate(owner, ids(prompt, 2), sampling, seed) for seed in seeds)
    return [asyncio.ensure_future(call) for call in calls]


async def tick() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def seeds(engine: FakeEngine) -> list[tuple[int, ...]]:
    return [request.seeds for request in engine.requests]


@played
async def test_turns_of_one_owner_with_the_same_tokens_and_sampling_share_a_request(generation, one, two):
    generation.attach(attached(one))
    turns = ask(generation, "a", 1, 2, 3) + ask(generation, "b", 4)
    turns += ask(generation, "a", 5, prompt=6) + ask(generation, "a", 6, sampling=GREEDY)
    await tick()
    assert one.calls == ["subscribe", "submit"], "all in one message"
    assert seeds(one) == [(1, 2, 3), (4,), (5,), (6,)]
    assert [request.token_ids.tolist() for request in one.requests] == [[5, 2], [5, 2], [6, 2], [5, 2]]
    assert one.requests[3].sampling == GREEDY
    turns += ask(generation, "a", 7)
    await tick()
    assert seeds(one)[-1] == (7,), "later calls go by themselves"
    for request in (3, 4, 0, 2, 1):
        generation.deliver(one.finish(request=request))
    assert [(await turn).token_ids[0] for turn in turns] == [1, 2, 3, 4, 5, 6, 7]


@played
async def test_each_request_goes_to_the_engine_with_the_fewest_unfinished_tokens(generation, one, two):
    generation.attach(attached(one, two))
    ask(generation, "a", 1, 2, 3)
    ask(generation, "b", 4)
    ask(generation, "c", 5)
    ask(generation, "d", 6)
    await tick()
    assert (seeds(one), seeds(two)) == ([(1, 2, 3)], [(4,), (5,), (6,)])
    generation.deliver(one.finish(0, 2))
    await tick()
    ask(generation, "e", 7)
    await tick()
    assert seeds(one)[-1] == (7,), "it has one unfinished sample, the other has three"


def test_what_no_engine_can_run_waits_for_the_one_that_has_room_first():
    async def scenario(generation, one, two):
        generation.attach(attached(one, two))
        for number, owner in enumerate("abcdefg"):
            ask(generation, owner, 10 * number, 10 * number + 1)
        await tick()
        assert (seeds(one), seeds(two)) == ([(0, 1), (20, 21), (40, 41)], [(10, 11), (30, 31), (50, 51)])
        generation.deliver(two.finish(0))
        assert len(seeds(one) + seeds(two)) == 6, "five samples are left, as many as it may have"
        generation.deliver(two.finish(1))
        assert seeds(two)[3:] == [(60, 61)]
        (late,) = ask(generation, "h", 70)
        await tick()
        late.cancel()
        await tick()
        generation.forget_cancelled()
        for request in (0, 1):
            generation.deliver(one.finish(request=request))
        await tick()
        assert seeds(one)[3:] == [], "of what waited, nothing is wanted any more"
        assert one.aborted == two.aborted == []

    play(scenario, runs=4)


def test_a_later_turn_goes_to_the_engine_that_has_its_context():
    async def scenario(generation, one, two):
        generation.attach(attached(one, two))
        contexts = [Context() for _ in range(4)]

        def turn(episode: int, seed: int) -> Any:
            call = generation.generate(str(episode), ids(5, seed), WARM, seed, contexts[episode])
            return asyncio.ensure_future(call)

        for episode in range(4):
            turn(episode, episode)
        await tick()
        assert (seeds(one), seeds(two)) == ([(0,), (2,)], [(1,), (3,)])
        for engine in (two, one):
            for request in (0, 1):
                generation.deliver(engine.finish(request=request))
        for episode in (3, 2, 1, 0):
            turn(episode, 10 + episode)
            await tick()
        assert (seeds(one)[2:], seeds(two)[2:]) == ([(12,), (10,)], [(13,), (11,)])
        generation.deliver(two.finish(request=2))
        generation.deliver(two.finish(request=3))
        generation.deliver(one.finish(request=2))
        turn(2, 22)
        await tick()
        assert seeds(two)[4:] == [(22,)], "the engine that has its context has more to do than its share"
        generation.attach(attached(one))
        turn(3, 23)
        await tick()
        assert seeds(one)[4:] == [(22,), (23,)], "the one that had its context is lost"

    play(scenario)


@played
async def test_turns_wait_for_the_first_engine(generation, one, two):
    (turn,) = ask(generation, "a", 1)
    await tick()
    generation.attach(attached(one))
    generation.deliver(one.finish())
    assert (await turn).token_ids[0] == 1


@pytest.mark.parametrize(("whole_requests", "moved"), [(False, (2,)), (True, (1, 2, 3))])
def test_what_a_lost_engine_had_not_finished_goes_to_another(whole_requests, moved):
    async def scenario(generation, one, two):
        generation.attach(attached(one))
        turns = ask(generation, "a", 1, 2, 3)
        await tick()
        generation.deliver(one.finish(0, 2))
        await tick()
        late = one.finish(1, version=9)
        generation.attach(attached(two))
        assert seeds(two) == [moved]
        assert two.requests[0].id != one.requests[0].id
        generation.deliver(late)
        await tick()
        assert not turns[1].done(), "the lost engine may have had other weights"
        generation.deliver(two.finish())
        done = [await turn for turn in turns]
        assert [(turn.token_ids[0], turn.versions[0]) for turn in done] == [(1, 7), (2, 7), (3, 7)]

    play(scenario, whole_requests=whole_requests)


@played
async def test_an_engine_that_stays_keeps_its_requests(generation, one, two):
    generation.attach(attached(one))
    ask(generation, "a", 1)
    await tick()
    generation.attach(attached(one, two))
    assert (seeds(one), seeds(two)) == ([(1,)], [])
    assert one.calls == ["subscribe", "submit", "subscribe"]


@played
async def test_requests_keep_while_no_engine_is_attached(generation, one, two):
    generation.attach(attached(one))
    (turn,) = ask(generation, "a", 1)
    await tick()
    generation.attach({})
    generation.attach(attached(two))
    generation.deliver(two.finish())
    assert (await turn).token_ids[0] == 1


@played
async def test_a_request_is_aborted_once_all_its_turns_are_cancelled(generation, one, two):
    generation.attach(attached(one))
    turns = ask(generation, "a", 1, 2) + ask(generation, "b", 3)
    await tick()
    turns[0].cancel()
    await tick()
    generation.forget_cancelled()
    assert one.aborted == []
    late = one.finish()
    turns[1].cancel()
    await tick()
    generation.forget_cancelled()
    assert seeds(one) == [(3,)]
    generation.deliver(late)
    generation.forget_cancelled()
    assert len(one.aborted) == 1


@played
async def test_the_time_in_which_engines_have_requests_is_the_mean_over_engines(generation, one, two):
    clock = [0.0]
    generation.time = EngineTime(lambda: clock[0])

    def later(seconds: float) -> float:
        clock[0] += seconds
        return float(generation.time.seconds())

    generation.attach(attached(one, two))
    assert later(9) == 0, "nothing was asked for"
    ask(generation, "a", 1, 2)
    (turn,) = ask(generation, "b", 3)
    await tick()
    assert later(1) == 1, "both have a request"
    generation.deliver(one.finish(0))
    assert later(1) == 2, "a sample of its request is unfinished"
    generation.deliver(one.finish(1))
    assert later(4) == 2 + 4 / 2, "one works"
    generation.attach(attached(one))
    assert later(3) == 4 + 3, "the only one has what the lost one had"
    turn.cancel()
    await tick()
    generation.forget_cancelled()
    assert later(5) == 7


@played
async def test_a_turn_that_is_cancelled_before_it_was_sent_is_not(generation, one, two):
    generation.attach(attached(one))
    (turn,) = ask(generation, "a", 1)
    await asyncio.sleep(0)
    turn.cancel()
    await tick()
    assert one.calls == ["subscribe"]


@played
async def test_turns_that_are_cancelled_move_to_no_other_engine(generation, one, two):
    generation.attach(attached(one))
    (turn,) = ask(generation, "a", 1)
    await tick()
    turn.cancel()
    await tick()
    generation.attach(attached(two))
    assert two.requests == []


def test_requests_of_two_hosts_never_have_the_same_name():
    """An engine may still send what a lost host had asked for."""
    names = []

    async def scenario(generation, one, two):
        generation.attach(attached(one))
        ask(generation, "a", 1)
        await tick()
        names.append(one.requests[0].id)

    play(scenario, incarnation="first")
    play(scenario, incarnation="second")
    assert len(set(names)) == 2


@played
async def test_an_engine_that_samples_with_a_policy_that_the_run_does_not_have_is_named(generation, one, two):
    generation.attach(attached(one))
    (turn,) = ask(generation, "a", 1)
    await tick()
    with pytest.raises(InfrastructureError, match=r"one .* 9"):
        generation.deliver(one.finish(version=9))
    assert not turn.done(), "another engine makes it"
