"""A driver's registry of the job's Ray workers; their names let it find the former driver's workers."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import ray
import structlog
from ray.exceptions import ActorAlreadyExistsError, GetTimeoutError, RayActorError, RayError, RayTaskError

from rljob_trainer.errors import InfrastructureError, first_line
from rljob_trainer.workers.heartbeats import Heartbeats
from rljob_trainer.workers.host import CONCURRENCY_GROUPS, Host, HostSettings
from rljob_trainer.workers.waiting import cause_of
from rljob_trainer.workers.worker import Answer, Worker

log = structlog.get_logger()

C = TypeVar("C")

CLAIM_SECONDS = 10.0
"""Deadline of a living worker's answer to a claim."""

LATE_SECONDS = 0.5
"""Extra time for other workers, such as spares, after all wanted ones have answered."""

END_SECONDS = 30.0
"""Deadline for Ray to declare a killed worker dead. Ray sends SIGKILL to a frozen process after 5 s."""


class Roster:
    """The workers of one job, as one attempt sees them.

    leave_after: seconds that workers wait for the next driver.
    fence: raises FencedError if a later attempt has the job. Needed because Ray lets any driver kill any worker, and
        workers keep their names after a takeover.
    """

    def __init__(self, attempt: int, leave_after: float, heartbeats: Heartbeats, fence: Callable[[], None]) -> None:
        self._attempt, self._leave_after, self._heartbeats, self._fence = attempt, leave_after, heartbeats, fence
        self._workers: dict[str, Worker[object]] = {}

    def __contains__(self, name: str) -> bool:
        """Whether this attempt has a worker of that name."""
        return name in self._workers

    def adopt(self, signatures: Mapping[str, Collection[str]], wanted: Collection[str] = ()) -> dict[str, Worker[Any]]:
        """Take over living workers with an accepted signature; end the other living workers of these names.

        signatures: {name: accepted signatures}. wanted: when workers with all of these signatures have answered, the
        others have LATE_SECONDS left. The caller knows which calls the workers take.
        Raises FencedError if a newer attempt has one of them.
        """
        found = living()
        workers: dict[str, Worker[object]] = {
            name: Worker(name, found[name], self._attempt, "") for name in signatures if name in found
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
        """Start a worker without waiting for it.

        Raises InfrastructureError if a worker of that name still exists, and FencedError.
        """
        self._fence()
        remote = ray.remote(concurrency_groups=CONCURRENCY_GROUPS)(kind)
        settings = HostSettings(self._attempt, signature, self._leave_after)
        named = remote.options(name=name, lifetime="detached", num_cpus=0, **options)
        try:
            handle = named.remote(settings, *arguments)
        except ActorAlreadyExistsError as error:
            self._fence()
            raise InfrastructureError(f"{name} cannot start: the former worker of that name still exists") from error
        return self._add(Worker(name, handle, self._attempt, signature))

    def end(self, worker: Worker[object]) -> None:
        """Kill a worker and wait until Ray reports it dead or it does not answer. Raises FencedError.

        A frozen process ends seconds later, before its successor has finished imports and needs its GPU memory.
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
        """Kill a worker without waiting. Raises FencedError."""
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


def living() -> dict[str, Any]:
    """Handles of the named workers in the job's Ray namespace."""
    handles = {}
    for name in ray.util.list_named_actors():
        try:
            handles[name] = ray.get_actor(name)
        except ValueError:  # it died after it was listed
            continue
    return handles


def _answers(claims: Mapping[str, Answer[str]], wanted: set[str]) -> dict[str, str]:
    """{name: signature} of workers that answered within CLAIM_SECONDS, or LATE_SECONDS after the last wanted one."""
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
    """The signature; "" if the worker is dead. Raises FencedError if a newer attempt has it."""
    try:
        return ray.get(claim)
    except RayTaskError as error:
        raise cause_of(error) from None
    except RayError as error:
        log.warning("worker_not_taken_over", reason=first_line(error))
        return ""
