"""Who of the job's workers is alive: a thread asks each of them, and whoever waits for work looks here."""

import threading
import time
from dataclasses import dataclass

import ray
import structlog
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from rljob_trainer.errors import EngineLost, RankLost, RewardsLost, WorkerLost
from rljob_trainer.workers.host import Beat
from rljob_trainer.workers.waiting import first_line
from rljob_trainer.workers.worker import Answer, Worker

log = structlog.get_logger()

BEAT_SECONDS = 1.0

START_SECONDS = 600.0
"""How long a worker may take to answer for the first time."""

DIAGNOSE_SECONDS = 3 * BEAT_SECONDS

STUCK = 10.0
"""How many times as long as a worker may be silent one that answers may keep others waiting: it may be computing."""

_LOST: dict[str, type[WorkerLost]] = {"rank": RankLost, "engine": EngineLost, "rewards": RewardsLost}


@dataclass(slots=True)
class _Patient:
    """asked: a question that is open; None where the last one was answered. silent: seconds for which one has been.

    died: Ray's words, once it did.
    stuck: seconds for which it has kept its pace (see Host) while another one was ahead.
    beat: the last answer; until the first one it may take START_SECONDS, for it imports.
    vital: the job cannot go on without it.
    Seconds are counted round by round, so that a driver that was stopped itself takes nobody for dead.
    """

    worker: Worker[object]
    asked: Answer[Beat] | None
    vital: bool = True
    silent: float = 0.0
    stuck: float = 0.0
    beat: Beat | None = None
    died: str | None = None


class Heartbeats:
    """Signs of life of all workers that are watched. silent_after: seconds after which silence counts as death."""

    def __init__(self, silent_after: float) -> None:
        self._silent_after = silent_after
        self._patients: dict[str, _Patient] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._ask_on, name="heartbeats", daemon=True)
        self._thread.start()

    def watch(self, worker: Worker[object], *, vital: bool = True) -> None:
        """vital: whether its loss is one that `check` and `diagnose` raise. Of one that is watched, that alone changes.

        It is asked at once, and answers as soon as its imports are done: one that freezes in its first second at work,
        before a round of questions, is not taken for one that still imports.
        """
        with self._lock:
            known = self._patients.get(worker.name)
            if known is not None and known.worker is worker:
                known.vital = vital
            else:
                self._patients[worker.name] = _Patient(worker, worker.beat(), vital)

    def died(self, name: str) -> bool:
        with self._lock:
            return name in self._patients and self._patients[name].died is not None

    def forget(self, name: str) -> None:
        with self._lock:
            self._patients.pop(name, None)

    def check(self, *kinds: str) -> None:
        """Raises RankLost, EngineLost or RewardsLost naming the first worker that is dead, silent or stuck.

        kinds: those that matter to the caller, "rank", "engine" or "rewards"; all by default.
        """
        with self._lock:
            patients = list(self._patients.values())
        for patient in patients:
            if not patient.vital or (kinds and kind_of(patient.worker.name) not in kinds):
                continue
            allowed = self._silent_after if patient.beat is not None else START_SECONDS
            if patient.died is not None or patient.silent > allowed:
                raise lost(patient.worker.name, patient.died or f"has not answered for {patient.silent:.0f} s")
            if patient.beat is not None and patient.stuck > STUCK * self._silent_after:
                raise lost(patient.worker.name, _hangs(patient.beat, patient.stuck))

    def diagnose(self) -> WorkerLost | None:
        """Who is dead, after time enough for everybody to answer; None if all live."""
        deadline = time.monotonic() + DIAGNOSE_SECONDS
        while time.monotonic() < deadline:
            try:
                self.check()
            except WorkerLost as found:
                return found
            time.sleep(BEAT_SECONDS / 10)
        return None

    def doing(self) -> str:
        """What every worker that is busy does, for the message of a wait that took too long."""
        with self._lock:
            busy = [(name, patient.beat) for name, patient in sorted(self._patients.items()) if patient.beat]
        said = [
            f"{name}: {method} for {seconds:.0f} s (pid {beat.pid}{beat.detail})"
            for name, beat in busy
            for method, seconds in beat.doing
        ]
        return "; ".join(said) or "no worker is busy"

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _ask_on(self) -> None:
        while not self._closed.wait(BEAT_SECONDS):
            with self._lock:
                patients = [patient for patient in self._patients.values() if patient.died is None]
            if patients:
                self._ask(patients)

    def _ask(self, patients: list[_Patient]) -> None:
        start = time.monotonic()
        asked = [patient.asked or patient.worker.beat() for patient in patients]
        ready, _ = ray.wait([each.ref for each in asked], num_returns=len(patients), timeout=BEAT_SECONDS)
        answered = set(ready)
        round_seconds = min(BEAT_SECONDS + time.monotonic() - start, 2 * BEAT_SECONDS)
        for patient, question in zip(patients, asked, strict=True):
            patient.asked = question
            heard = question.ref in answered and _hear(patient, question)
            patient.silent = 0.0 if heard else patient.silent + round_seconds
        foremost = max((pace for patient in patients if (pace := _pace(patient)) is not None), default=0)
        for patient in patients:
            if (pace := _pace(patient)) is not None and pace < foremost:
                patient.stuck += round_seconds


def _pace(patient: _Patient) -> int | None:
    return patient.beat.pace if patient.beat is not None else None


def _hear(patient: _Patient, question: Answer[Beat]) -> bool:
    """Take the answer. Returns whether it is one of the worker's."""
    patient.asked = None
    before = _pace(patient)
    try:
        patient.beat = ray.get(question.ref)
        patient.stuck = patient.stuck if _pace(patient) == before else 0.0
    except ActorDiedError as error:
        patient.died = f"died: {first_line(error)}"
    except RayTaskError:  # it refuses: a newer attempt has it, as its next call will say
        return True
    except RayError as error:
        log.warning("worker_unreachable", worker=patient.worker.name, reason=first_line(error))
    else:
        return True
    return False


def _hangs(beat: Beat, seconds: float) -> str:
    methods = " and ".join(method for method, _ in beat.doing)
    return f"hangs in {methods}: others have waited for it for {seconds:.0f} s (pid {beat.pid}{beat.detail})"


def lost(name: str, how: str) -> WorkerLost:
    """The error for a worker that is no more, or as good as."""
    return _LOST[kind_of(name)](f"{name} {how}", worker=name)


def kind_of(name: str) -> str:
    return name.split("-", maxsplit=1)[0]
