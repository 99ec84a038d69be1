"""`rljob run` on a volume that does not always answer; without Ray, and with simulated drivers."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rljob_api.contract import ExitRecord
from rljob_trainer.attempt.claim import record_exit
from rljob_trainer.checkpoint.manifest import MANIFEST
from rljob_trainer.errors import InfrastructureError
from rljob_trainer.local import agent_process
from rljob_trainer.local import supervisor as supervisor_module
from rljob_trainer.local.prepare import LocalRun
from rljob_trainer.local.ray_cluster import LocalRay
from rljob_trainer.local.reward_servers import RewardServers
from rljob_trainer.local.stop import Stop
from rljob_trainer.local.supervisor import Supervisor, lost
from rljob_trainer.progress.state import last_attempt
from rljob_trainer.volume import Volume
from tests.rljob_trainer.checkpoint_support import begin_attempt, job_spec


def stale(path: Path) -> OSError:
    return OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))


class Process:
    """A child that has ended, or (code None) lives."""

    def __init__(self, code: int | None) -> None:
        self.returncode, self.pid = code, os.getpid()

    def poll(self) -> int | None:
        return self.returncode


class Watcher:
    """A view, and an agent, without news."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def poll(self) -> None: ...

    def news(self) -> None: ...

    def note(self, message: str) -> None:
        self.notes.append(message)


@dataclass
class Place:
    """play: what the driver of an attempt does; it may raise what it ends with. rays: how many were started."""

    volume: Volume
    play: Callable[[int], None]
    view: Watcher = field(default_factory=Watcher)
    rays: int = 0
    max_restarts: int = 5

    def supervisor(self) -> Supervisor:
        spec = job_spec()
        recovery = spec.recovery.model_copy(update={"max_restarts": self.max_restarts})
        run = LocalRun(
            "job", spec.model_copy(update={"recovery": recovery}), self.volume.root, self.volume,
            gpus=0, environment={}, notes=(),
        )  # fmt: skip
        return Supervisor(run, "u1", self.view, Stop(), 0)  # type: ignore[arg-type]

    def run(self) -> ExitRecord:
        return self.supervisor().run()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Drivers save step n each; the first one fails, the second is done."""
    volume = Volume(tmp_path / "run")

    def play(attempt: int) -> None:
        begin_attempt(volume, attempt).save(attempt)
        if attempt == 1:
            raise InfrastructureError("a rank is gone")

    made = Place(volume, play)

    @contextmanager
    def driver(_: Volume, attempt: int, *more: Any) -> Iterator[Process]:
        error: Exception | None = None
        try:
            made.play(attempt)
        except InfrastructureError as raised:
            error = raised
        yield Process(record_exit(volume, attempt, error).code)

    @contextmanager
    def ray(*_: Any) -> Iterator[LocalRay]:
        made.rays += 1
        yield LocalRay(tmp_path / "address", Process(None), tmp_path / "ray.log")  # type: ignore[arg-type]

    @contextmanager
    def agent(*_: Any) -> Iterator[Watcher]:
        yield Watcher()

    for name, played in (("_driver", driver), ("local_ray", ray), ("running_agent", agent)):
        monkeypatch.setattr(supervisor_module, name, played)
    return made


def failing_at(monkeypatch: pytest.MonkeyPatch, name: str, times: range, path: Path) -> None:
    """The supervisor's function of that name fails at these calls, counted from 1."""
    works, calls = getattr(supervisor_module, name), iter(range(1, 100))

    def fails(*arguments: Any) -> Any:
        if next(calls) in times:
            raise stale(path)
        return works(*arguments)

    monkeypatch.setattr(supervisor_module, name, fails)


def failing(error: Exception) -> Callable[..., Any]:
    def fails(*_: Any) -> Any:
        raise error

    return fails


def test_a_checkpoint_that_cannot_be_read_ends_no_run(place: Place):
    def play(number: int) -> None:
        attempt = begin_attempt(place.volume, number)
        if number == 1:
            old, _ = attempt.save(1), attempt.save(2)
            (old.path / MANIFEST).unlink()
            (old.path / MANIFEST).mkdir()
            raise InfrastructureError("a rank is gone")

    place.play = play
    assert place.run().code == 0
    assert last_attempt(place.volume) == 2
    assert "restart 1 of 5 since the checkpoint of step 2" in place.view.notes[0]


def test_a_failure_knows_the_last_durable_step_though_the_volume_does_not_answer(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    supervisor = place.supervisor()
    begin_attempt(place.volume, 1).save(7)
    record = ExitRecord(code=75, reason="RankLost", message="rank-0 died")
    assert supervisor._failure(record, 75, None).durable_step == 7
    iterdir = Path.iterdir

    def stale_folder(path: Path) -> Iterator[Path]:
        if path == place.volume.checkpoints:
            raise stale(path)
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", stale_folder)
    assert supervisor._failure(record, 75, None).durable_step == 7


@pytest.mark.parametrize(
    ("name", "path", "call"),
    [("write_job", "control/job.json", 2), ("next_attempt", "attempts", 2), ("local_ray", "logs/ray.log", 1)],
)
def test_a_volume_that_does_not_answer_between_attempts_is_asked_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, name: str, path: str, call: int
):
    failing_at(monkeypatch, name, range(call, call + 1), place.volume.root / path)
    assert place.run().code == 0
    assert last_attempt(place.volume) == 2
    assert any("does not answer: [Errno 116] Stale file handle" in note for note in place.view.notes)


def test_a_volume_that_never_answers_again_spends_the_budget(place: Place, monkeypatch: pytest.MonkeyPatch):
    place.max_restarts = 1
    failing_at(monkeypatch, "write_job", range(2, 100), place.volume.root / "control/job.json")
    record = place.run()
    assert (record.code, record.reason) == (75, "RestartsExhausted")
    assert "choose another" not in record.message


def test_what_is_no_fault_of_the_volume_is_not_blamed_on_it(place: Place, monkeypatch: pytest.MonkeyPatch):
    failing_at(monkeypatch, "write_job", range(1, 2), Path("setpriv"))
    with pytest.raises(OSError, match="setpriv"):
        place.run()


def test_a_claim_that_cannot_be_read_ends_no_driver_that_is_sound(place: Place, monkeypatch: pytest.MonkeyPatch):
    begin_attempt(place.volume, 1).save(1)
    supervisor = place.supervisor()
    begin_attempt(place.volume, 2)
    news = supervisor._news_of_takeover(2)
    with monkeypatch.context() as patched:
        patched.setattr(supervisor_module, "read_claim", failing(stale(place.volume.claim(2))))
        assert next(news) is None
    assert next(news) == "attempt 2 goes on from step 1"


def test_a_token_that_cannot_be_deleted_replaces_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ended: list[bool] = []

    class Played:
        def __init__(self, volume: Volume, port: int, token_file: Path, environment: Any) -> None:
            self.token_file = token_file

        def end(self) -> None:
            ended.append(True)

    monkeypatch.setattr(agent_process, "Agent", Played)
    volume = Volume(tmp_path)
    volume.control.mkdir()
    with agent_process.running_agent(volume, 0, {}) as agent:
        token_file = agent.token_file  # type: ignore[attr-defined]
        assert len(token_file.read_text()) > 32
        token_file.unlink()
        token_file.mkdir()  # unlink fails
    assert ended == [True]
    assert token_file.is_dir()


def test_a_volume_that_fails_a_reward_model_s_start_is_asked_again(place: Place, monkeypatch: pytest.MonkeyPatch):
    """Of one that was ready and hangs: it is started again, and its log is on the volume."""
    log = stale(place.volume.logs / "reward-model-judge.log")
    answers: Iterator[Exception | None] = iter([log, None, None])

    def wait(*_: Any) -> None:
        if (error := next(answers)) is not None:
            raise error

    monkeypatch.setattr(RewardServers, "wait", wait)
    assert place.run().code == 0
    assert "does not answer: [Errno 116] Stale file handle" in place.view.notes[0]


def test_reward_models_that_do_not_become_ready_end_the_run(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(RewardServers, "wait", failing(InfrastructureError("waited 3600 s for reward models: judge")))
    with pytest.raises(InfrastructureError, match="waited 3600 s"):
        place.run()
    assert last_attempt(place.volume) == 0


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ('{"event": "attempt_ended", "code": 75, "message": "the volume is read-only"}', "the volume is read-only"),
        ('{"event": "told_nothing"}', '{"event": "told_nothing"}'),
        ("Killed", "Killed"),
        ("", "exited with code 75"),
    ],
)
def test_a_driver_that_could_not_write_its_record_has_said_it_in_its_log(tmp_path: Path, last: str, said: str):
    volume = Volume(tmp_path)
    volume.logs.mkdir()
    (volume.logs / "driver.log").write_text(f"first\n{last}\n" if last else "")
    assert lost(75, volume).message == f"the driver left no exit record: {said}"
