"""A driver's view of the job's Ray workers: by name, so that it finds those of the driver before it."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import ray
import structlog
from ray.exceptions import ActorAlreadyExistsError, GetTimeoutError, RayActorError, RayError, RayTaskError

from rljob_trainer.errors import InfrastructureError
from rljob_trainer.workers.heartbeats import Heartbeats
from rljob_trainer.workers.host import CONCURRENCY_GROUPS, Host, HostSettings
from rljob_trainer.workers.waiting import cause_of, first_line
from rljob_trainer.workers.worker import Answer, Worker

log = structlog.get_logger()

C = TypeVar("C")

CLAIM_SECONDS = 10.0
"""How long a living worker may take to answer a claim, which it does beside its work."""

LATE_SECONDS = 0.5
"""How long nobody is ended for its silence, once all that are wanted have answered: a spare that lives need not import
again, while the next loss waits for it."""

END_SECONDS = 30.0
"""How long Ray may take to declare a killed worker dead. It forces the process of one that is frozen after 5."""


class Roster:
    """The workers of one job, as one attempt sees them.

    leave_after: seconds that workers wait for a next driver.
    fence: raises FencedError where a later attempt has the job. Ray would kill workers for whoever asks, and those that
    a driver took over have the names that they had before.
    """

    def __init__(self, attempt: int, leave_after: float, heartbeats: Heartbeats, fence: Callable[[], None]) -> None:
        self._attempt, self._leave_after, self._heartbeats, self._fence = attempt, leave_after, heartbeats, fence
        self._workers: dict[str, Worker[object]] = {}

    def __contains__(self, name: str) -> bool:
        """Whether this attempt has a worker of that name."""
        return name in self._workers

    def adopt(self, signatures: Mapping[str, Collection[str]], wanted: Collection[str] = ()) -> dict[str, Worker[Any]]:
        """Take over the living workers among these names, {name: what it may be}. Others of these names are ended.

        The client that knows the names says which calls these workers take.

        wanted: signatures; when somebody has answered with each, others have LATE_SECONDS left. By default all are.
        Raises FencedError where a newer attempt has one of them.
        """
        living = _living()
        workers: dict[str, Worker[object]] = {
            name: Worker(name, living[name], self._attempt, "") for name in signatures if name in living
        }
        claims = {name: worker.claim() for name, worker in workers.items()}
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

    def start(
        self, name: str, signature: str, kind: type[Host], options: Mapping[str, Any], *arguments: Any
    ) -> Worker[Any]:
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

    def end(self, worker: Worker[object]) -> None:
        """Kill it, and wait until nobody reaches it. A frozen one is gone some seconds later, before another one needs
        its GPU memory: that one imports first. Raises FencedError.
        """
        self._fence()
        self._heartbeats.forget(worker.name)
        self._workers.pop(worker.name, None)
        waiting = worker.beat()
        ray.kill(worker.handle)
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            try:
                ray.get(waiting.ref, timeout=deadline - time.monotonic())
            except (RayActorError, GetTimeoutError):
                return
            except RayError:
                pass
            waiting = worker.beat()

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

    def _add(self, worker: Worker[C]) -> Worker[C]:
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


def _answers(claims: Mapping[str, Answer[str]], wanted: set[str]) -> dict[str, str]:
    """{name: signature} of those who answered within CLAIM_SECONDS, or LATE_SECONDS after the last that is wanted."""
    deadline = time.monotonic() + CLAIM_SECONDS
    names = {claim.ref: name for name, claim in claims.items()}
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
