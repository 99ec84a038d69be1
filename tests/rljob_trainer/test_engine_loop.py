"""The thread that touches an engine: decode steps, work between them, and what its subscriber receives."""

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pytest

from rljob_trainer.engines import engine_loop
from rljob_trainer.engines.calls import Delivery, Subscriber
from rljob_trainer.engines.engine import Completion, EngineSettings, Request
from rljob_trainer.engines.engine_host import EngineProcess
from rljob_trainer.engines.engine_loop import EngineLoop
from rljob_trainer.errors import InfrastructureError, JobError
from rljob_trainer.types import Sampling
from rljob_trainer.workers.trace import VARIABLE
from tests.rljob_trainer.rollouts_support import completion, ids


class CountingEngine:
    """A RolloutEngine in which a sample takes as many steps as its seed says; steps take turns with the test.

    log: what it did, in its order; all in one thread.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.thread = threading.get_ident()
        self.failure: Exception | None = None
        self._left: dict[tuple[str, int], int] = {}
        self._requests: dict[str, Request] = {}

    @property
    def unfinished(self) -> int:
        return len(self._left)

    def submit(self, request: Request) -> None:
        if len(request.token_ids) > 4:
            raise JobError("a prompt leaves no room", field="spec.data.maxPromptTokens")
        self._note(f"submit {request.id}")
        self._requests[request.id] = request
        self._left |= {(request.id, sample): max(steps, 1) for sample, steps in enumerate(request.seeds)}

    def step(self) -> Sequence[Completion]:
        self._note("step")
        if self.failure is not None:
            raise self.failure
        self._left = {sample: steps - 1 for sample, steps in self._left.items()}
        ended = [sample for sample, steps in self._left.items() if steps == 0]
        for sample in ended:
            del self._left[sample]
        return [completion(self._requests[name], index) for name, index in ended]

    def abort(self, names: Collection[str]) -> None:
        self._note("abort")
        self._left = {sample: steps for sample, steps in self._left.items() if sample[0] not in names}

    def close(self) -> None:
        self._note("close")

    def __getattr__(self, name: str) -> Any:
        """begin_update, finish_update, wake, sleep."""
        return lambda *_: self._note(name)

    def _note(self, what: str) -> None:
        assert threading.get_ident() == self.thread
        self.log.append(what)


class Inbox:
    """What a subscriber receives."""

    def __init__(self) -> None:
        self.bundles: list[list[tuple[str, int]]] = []
        self.errors: list[Exception] = []
        self.before_error = 0
        self._arrived = threading.Condition()

    def deliver(self, completions: Sequence[Completion], error: Exception | None) -> None:
        with self._arrived:
            if completions:
                self.bundles.append([(each.request_id, each.sample) for each in completions])
            if error is not None:
                self.errors.append(error)
                self.before_error = len(self.bundles)
            self._arrived.notify_all()

    def wait(self, arrived: Callable[["Inbox"], object]) -> None:
        with self._arrived:
            assert self._arrived.wait_for(lambda: arrived(self), 10)

    @property
    def samples(self) -> list[tuple[str, int]]:
        return [sample for bundle in self.bundles for sample in bundle]


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def loop(inbox: Inbox) -> Iterator[EngineLoop]:
    loop = EngineLoop(inbox.deliver)
    yield loop
    loop.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "engine"]


@pytest.fixture
def engine(loop: EngineLoop) -> Any:
    loop.start(CountingEngine)
    return loop.engine


def request(name: str, *steps: int, prompt: int = 2) -> Request:
    return Request(name, ids(*range(prompt)), Sampling(8), steps)


def submit(loop: EngineLoop, *requests: Request) -> None:
    """All before the next step."""

    def work() -> None:
        for each in requests:
            assert loop.engine is not None
            loop.engine.submit(each)

    loop.post(work)


def test_an_engine_that_cannot_be_made_is_its_makers_failure(loop):
    def make() -> Any:
        raise JobError("vLLM is missing", field="spec.rollout.engine")

    with pytest.raises(JobError, match="vLLM is missing"):
        loop.start(make)
    assert loop.engine is None
    assert loop.do(lambda: 3) == 3


def test_work_runs_between_steps_and_requests_join_those_that_run(loop, engine, inbox):
    submit(loop, request("a", 10**9))
    loop.do(lambda: engine.log.append("work"))
    submit(loop, request("b", 3))
    inbox.wait(lambda inbox: inbox.samples == [("b", 0)])
    with pytest.raises(ValueError, match="not this"):
        loop.do(fail)
    loop.do(lambda: engine.abort(["a"]))
    log = [each for each, before in zip(engine.log, [None, *engine.log], strict=False) if each != before]
    assert [each for each in log if each != "step"] == ["submit a", "work", "submit b", "abort"]
    assert log[-2:] == ["step", "abort"]
    assert engine.log[engine.log.index("submit b") :].count("step") >= 3


def fail() -> None:
    raise ValueError("not this")


def test_completions_wait_for_others_while_the_engine_generates_on(loop, engine, inbox, monkeypatch):
    monkeypatch.setattr(engine_loop, "BUNDLE_SECONDS", 60.0)
    submit(loop, request("a", 1, 4), request("b", 2))
    inbox.wait(lambda inbox: len(inbox.samples) == 3)
    assert inbox.bundles == [[("a", 0), ("b", 0), ("a", 1)]]


def test_a_completion_waits_no_longer_than_that(loop, engine, inbox):
    submit(loop, request("a", 1, 10**9))
    inbox.wait(lambda inbox: inbox.bundles == [[("a", 0)]])


def test_a_completion_is_sent_if_what_it_waited_for_is_aborted(loop, engine, inbox, monkeypatch):
    monkeypatch.setattr(engine_loop, "BUNDLE_SECONDS", 60.0)
    submit(loop, request("a", 1), request("b", 10**9))
    while engine.unfinished > 1 or not engine.log:
        loop.do(lambda: None)
    loop.post(lambda: engine.abort(["b"]))
    inbox.wait(lambda inbox: inbox.bundles == [[("a", 0)]])


def test_completions_that_work_has_kept_are_sent(loop, engine, inbox):
    loop.do(lambda: loop.keep([completion(request("a", 1))]))
    inbox.wait(lambda inbox: inbox.samples == [("a", 0)])


def test_a_trace_has_the_times_in_which_it_had_requests(loop, engine, inbox, monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    submit(loop, request("a", 3), request("b", 1))
    inbox.wait(lambda inbox: len(inbox.samples) == 2)
    loop.do(lambda: None)
    assert loop.busy_since is None
    time.sleep(0.05)
    submit(loop, request("c", 1))
    inbox.wait(lambda inbox: len(inbox.samples) == 3)
    loop.do(lambda: None)
    lines = [json.loads(line) for line in (tmp_path / f"{os.getpid()}.jsonl").read_text().splitlines()]
    assert [line["call"] for line in lines] == ["generate", "generate"]
    assert lines[0]["start"] <= lines[0]["end"] <= lines[1]["start"] - 0.05


def test_what_waits_for_an_idle_engine_comes_after_what_is_unfinished(loop, engine, inbox):
    submit(loop, request("a", 1000))
    loop.do_when_idle(lambda: engine.log.append("rest"))
    assert engine.log == ["submit a", *["step"] * 1000, "rest"]
    assert loop.do_when_idle(lambda: 5) == 5


def test_an_error_in_a_step_breaks_the_engine_and_reaches_the_subscriber(loop, engine, inbox, monkeypatch):
    monkeypatch.setattr(engine_loop, "BUNDLE_SECONDS", 60.0)
    submit(loop, request("a", 1, 10**9))
    while engine.unfinished > 1 or not engine.log:
        loop.do(lambda: None)
    engine.failure = InfrastructureError("CUDA error")
    inbox.wait(lambda inbox: inbox.errors)
    assert inbox.bundles == [[("a", 0)]], "what was finished is not lost"
    assert inbox.before_error == 1, "it is not generated again"
    assert str(inbox.errors[0]) == "CUDA error"
    steps = engine.log.count("step")
    for ask in (loop.do, loop.do_when_idle):
        with pytest.raises(InfrastructureError, match="the rollout engine failed before: CUDA error"):
            ask(lambda: None)
    assert engine.log.count("step") == steps


def test_a_bug_arrives_with_its_traceback(loop, engine, inbox):
    engine.failure = ZeroDivisionError("a bug")
    submit(loop, request("a", 1))
    inbox.wait(lambda inbox: inbox.errors)
    assert "in step" in str(inbox.errors[0])
    assert "ZeroDivisionError: a bug" in str(inbox.errors[0])


def test_a_request_that_is_refused_breaks_nothing(loop, engine, inbox):
    submit(loop, request("a", 1, prompt=9))
    inbox.wait(lambda inbox: inbox.errors)
    assert isinstance(inbox.errors[0], JobError)
    submit(loop, request("b", 1))
    inbox.wait(lambda inbox: inbox.samples == [("b", 0)])


def test_closing_ends_the_engine(loop, engine):
    submit(loop, request("a", 10**9))
    loop.close()
    assert engine.log[-1] == "close"
    loop.close()


# ---- the process around it


class Host:
    """The Worker[Receiver] of a rollout host."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.arrived = threading.Semaphore(0)

    def call_beside(self, group: str, method: Any, delivery: Delivery) -> None:
        assert (group, method.__name__) == ("inbox", "deliver")
        self.deliveries.append(delivery)
        self.arrived.release()


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineProcess]:
    from rljob_trainer.engines import engine_host

    monkeypatch.setattr(engine_host, "create_engine", lambda settings: CountingEngine())
    process = EngineProcess("engine-0", EngineSettings("hf", "model", 32))
    yield process
    process.close()


def test_an_engine_serves_the_host_that_subscribed_last(process):
    first, second = Host(), Host()
    process.start([], 0, False)
    process.subscribe(Subscriber("first", first))  # type: ignore[arg-type]
    process.submit("first", [request("old", 10**9)])
    process.subscribe(Subscriber("second", second))  # type: ignore[arg-type]
    process.submit("first", [request("late", 1)])
    process.submit("second", [request("new", 2)])
    process.abort("first", ["new"])
    assert second.arrived.acquire(timeout=10)
    assert first.deliveries == []
    (delivery,) = second.deliveries
    assert (delivery.engine, delivery.incarnation) == ("engine-0", "second")
    assert [each.request_id for each in delivery.completions] == ["new"]


def test_an_update_ends_with_the_answers_to_the_probe(process):
    host = Host()
    process.start([], 0, False)
    process.subscribe(Subscriber("host", host))  # type: ignore[arg-type]
    process.begin_update(3)
    process._loop.do(lambda: None)
    engine: Any = process._loop.engine
    answers = process.complete_update(3, [ids(1, 2), ids(3)], max_tokens=2)
    assert [answer.request_id for answer in answers] == ["probe/0", "probe/1"]
    assert [each for each in engine.log if each != "step"] == [
        "begin_update", "finish_update", "wake", "submit probe/0", "submit probe/1",
    ]  # fmt: skip
    assert process.rest()
    assert engine.log[-1] == "sleep"


def test_an_engine_that_measures_memory_does_not_start_beside_others(process, monkeypatch):
    from rljob_trainer.engines import engine_host

    monkeypatch.setattr(engine_host, "measures_memory", lambda settings: True)
    assert not process.start([], 0, True)
    assert not process.rest()
    assert process.start([], 0, False)
    assert process.start([], 0, True), "it runs"


def test_an_engine_that_was_never_started_can_only_rest(process):
    assert not process.rest()
    with pytest.raises(InfrastructureError, match="not running"):
        process.sleep()
