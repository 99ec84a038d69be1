"""A driver's view of the job's Ray workers: by name, so that it finds those of the driver before it."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import ray
import structlog
from ray.exceptions import ActorAlreadyExistsError, GetTimeoutError, RayActorError, RayError, RayTaskError

from rljob_trainer.errors import InfrastructureError
from rljob_trainer.workers.heartbeats import Heartbeats
from rljob_trainer.workers.host import CONCURRENCY_GROUPS, Host, HostSettings
from rljob_trainer.workers.waiting import cause_of, first_line

log = structlog.get_logger()

CLAIM_SECONDS = 10.0
"""How long a living worker may take to answer a claim, which it does beside its work."""

LATE_SECONDS = 0.5
"""How long nobody is ended for its silence, once all that are wanted have answered: a spare that lives need not import
again, while the next loss waits for it."""

END_SECONDS = 30.0
"""How long Ray may take to declare a killed worker dead. It forces the process of one that is frozen after 5."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A Ray worker on behalf of one attempt. It may be sent to other workers, which then call it in its name.

    signature: what it was when this attempt started it or took it over.
    """

    name: str
    handle: Any
    attempt: int
    signature: str

    def call(self, method: str, *arguments: Any, group: str | None = None) -> "ray.ObjectRef[Any]":
        """Start a call. References among `arguments` arrive as their values."""
        remote = self.handle.call if group is None else self.handle.call.options(concurrency_group=group)
        return remote.remote(self.attempt, method, *arguments)

    def ask(self, method: str, *arguments: Any) -> "ray.ObjectRef[Any]":
        """Start `claim`, `sign` or `beat`, which it answers beside its work."""
        return getattr(self.handle, method).options(concurrency_group="control").remote(self.attempt, *arguments)

    def stream(self, method: str, *arguments: Any) -> Any:
        """Start a call that yields; returns Ray's generator of references."""
        return self.handle.stream.options(num_returns="streaming").remote(self.attempt, method, *arguments)


class Roster:
    """The workers of one job, as one attempt sees them.

    leave_after: seconds that workers wait for a next driver.
    fence: raises FencedError where a later attempt has the job. Ray would kill workers for whoever asks, and those that
    a driver took over have the names that they had before.
    """

    def __init__(self, attempt: int, leave_after: float, heartbeats: Heartbeats, fence: Callable[[], None]) -> None:
        self._attempt, self._leave_after, self._heartbeats, self._fence = attempt, leave_after, heartbeats, fence
        self._workers: dict[str, Worker] = {}

    def __contains__(self, name: str) -> bool:
        """Whether this attempt has a worker of that name."""
        return name in self._workers

    def adopt(self, signatures: Mapping[str, Collection[str]], wanted: Collection[str] = ()) -> dict[str, Worker]:
        """Take over the living workers among these names, {name: what it may be}. Others of these names are ended.

        wanted: signatures; when somebody has answered with each, others have LATE_SECONDS left. By default all are.
        Raises FencedError where a newer attempt has one of them.
        """
        living = _living()
        workers = {name: Worker(name, living[name], self._attempt, "") for name in signatures if name in living}
        claims = {name: worker.ask("claim") for name, worker in workers.items()}
        answers = _answers(claims, set(wanted))
        adopted = {}
        for name in claims:
            signature = answers.get(name, "")
            if signature in signatures[name]:
                adopted[name] = self._add(replace(workers[name], signature=signature))
            else:
                self.end(workers[name])
        if adopted:
            log.info("workers_taken_over", workers=sorted(adopted))
        return adopted

    def start(self, name: str, signature: str, kind: type[Host], options: Mapping[str, Any], *arguments: Any) -> Worker:
        """Start a worker, without waiting for it.

        Raises InfrastructureError where one of that name has not come to its end yet, and FencedError.
        """
        self._fence()
        remote = ray.remote(concurrency_groups=CONCURRENCY_GROUPS)(kind)
        settings = HostSettings(self._attempt, signature, self._leave_after)
        named = remote.options(name=name, lifetime="detached", num_cpus=0, **options)
        try:
            handle = named.remote(settings, *arguments)
        except ActorAlreadyExistsError as error:
            self._fence()
            raise InfrastructureError(f"{name} cannot be started: another one is still there") from error
        return self._add(Worker(name, handle, self._attempt, signature))

    def end(self, worker: Worker) -> None:
        """Kill it, and wait until nobody reaches it. A frozen one is gone some seconds later, before another one needs
        its GPU memory: that one imports first. Raises FencedError.
        """
        self._fence()
        self._heartbeats.forget(worker.name)
        self._workers.pop(worker.name, None)
        waiting = worker.ask("beat")
        ray.kill(worker.handle)
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            try:
                ray.get(waiting, timeout=deadline - time.monotonic())
            except (RayActorError, GetTimeoutError):
                return
            except RayError:
                pass
            waiting = worker.ask("beat")

    def kill(self, name: str) -> None:
        """Kill it, without waiting. Raises FencedError."""
        self._fence()
        if name in self._workers:
            ray.kill(self._workers[name].handle)

    def end_all(self) -> None:
        """End every worker of this attempt. Raises FencedError."""
        self._fence()
        for worker in list(self._workers.values()):
            ray.kill(worker.handle)
        for worker in list(self._workers.values()):
            self.end(worker)

    def _add(self, worker: Worker) -> Worker:
        self._workers[worker.name] = worker
        self._heartbeats.watch(worker)
        return worker


def _living() -> dict[str, Any]:
    """Handles of the job's named workers, those of Ray's namespace."""
    handles = {}
    for name in ray.util.list_named_actors():
        try:
            handles[name] = ray.get_actor(name)
        except ValueError:  # it died in between
            continue
    return handles


def _answers(claims: Mapping[str, "ray.ObjectRef[str]"], wanted: set[str]) -> dict[str, str]:
    """{name: signature} of those who answered within CLAIM_SECONDS, or LATE_SECONDS after the last that is wanted."""
    deadline = time.monotonic() + CLAIM_SECONDS
    names = {claim: name for name, claim in claims.items()}
    answers: dict[str, str] = {}
    complete = False
    while names:
        if wanted and not complete and wanted <= set(answers.values()):
            complete, deadline = True, time.monotonic() + LATE_SECONDS
        ready, _ = ray.wait(list(names), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        answers |= {names.pop(claim): _answer(claim) for claim in ready}
    if names and not complete:
        log.warning("workers_not_taken_over", reason="no answer", workers=sorted(names.values()))
    return answers


def _answer(claim: "ray.ObjectRef[str]") -> str:
    """Its signature; "" from one that is dead. Raises FencedError from one that a newer attempt has."""
    try:
        return ray.get(claim)
    except RayTaskError as error:
        raise cause_of(error) from None
    except RayError as error:
        log.warning("worker_not_taken_over", reason=first_line(error))
        return ""
