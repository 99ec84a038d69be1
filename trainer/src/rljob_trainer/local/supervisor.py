"""One local run, from a file to an exit code. It supervises drivers as the operator does in a cluster.

    rljob run ──> reward model servers   ready before the first driver starts
              ──> ray_head               Ray, whose workers the drivers use
              ──> driver                 one attempt; its exit record says how it ended
              ──> agent                  serves the run's files over HTTP
              ──> view                   shows the same files, in this process

Two loops: `run` starts one attempt after the other, `_follow` polls one driver. The driver imports its modules while
Ray starts. After a failure the recovery policy decides whether the next driver takes over the workers, Ray is rebuilt,
or the run ends.
"""

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from rljob_api.conditions import Reason
from rljob_api.contract import GENERATION_VARIABLE, OWNER_VARIABLE, REASONS, DriverJob, ExitCode, ExitRecord, last_words
from rljob_api.durations import parse_duration
from rljob_api.recovery import LOCAL_LEVELS, Action, Component, Failure, History, decide_recovery
from rljob_trainer.attempt.claim import exit_record, read_exit
from rljob_trainer.attempt.job_file import write_job
from rljob_trainer.checkpoint.lineage import read_claim
from rljob_trainer.checkpoint.manifest import durable_step
from rljob_trainer.errors import InfrastructureError, RLJobError, StorageFullError
from rljob_trainer.local.agent_process import Agent, running_agent
from rljob_trainer.local.driver_heartbeat import DriverHeartbeat
from rljob_trainer.local.machine import RLJOB, Child, end_child, last_line, start_child
from rljob_trainer.local.prepare import LocalRun, answering, no_room, with_room, writable
from rljob_trainer.local.ray_cluster import LocalRay, local_ray, ray_environment
from rljob_trainer.local.reward_servers import RewardServers
from rljob_trainer.local.stop import Stop, interrupts
from rljob_trainer.progress.state import next_attempt, read_object
from rljob_trainer.progress.views import Reporter, open_reporter
from rljob_trainer.volume import Volume, write_json
from rljob_trainer.workers.profile import profile_folder
from rljob_trainer.workers.trace import trace_folder

POLL_SECONDS = 0.2

ORPHAN_SECONDS = 5.0
"""Time for a driver to notice that Ray is gone."""

PATIENT_THREADS = {"GOMP_SPINCOUNT": "20000"}
"""Waiting OpenMP threads give up their core soon, because ranks, engines and rewards share the cores.

They spin briefly first, because small operations follow within microseconds and waking a thread takes longer.
"""


def supervise(run: LocalRun, uid: str, agent_port: int) -> int:
    """Run and show the job. Returns the exit code of `rljob run`. Call it from the main thread."""
    with interrupts() as stop:  # includes the view, which has to restore the terminal
        view = open_reporter(run.info(uid))
        view.start()
        for note in run.notes:
            view.note(note)
        try:
            with with_room(run.volume):
                record = Supervisor(run, uid, view, stop, agent_port).run()
        except RLJobError as error:
            record = exit_record(error)
        with suppress(OSError):  # the view shows the record, which names the problem
            write_json(run.volume.run_exit, record.model_dump(mode="json", by_alias=True))
        view.finish(record)
    return record.code


class Supervisor:
    """Drivers one after the other, until the run is done or the recovery policy gives up."""

    def __init__(self, run: LocalRun, uid: str, view: Reporter, stop: Stop, agent_port: int) -> None:
        self._run, self._volume, self._view, self._stop, self._agent_port = run, run.volume, view, stop, agent_port
        environment = {**PATIENT_THREADS, **os.environ}
        self._servers = RewardServers(run.servers, run.running, self._volume.logs, environment)
        environment |= run.environment | self._servers.keys
        self._environment = {**environment, **ray_environment(), **trace_folder(), **profile_folder(self._volume.root)}
        self._environment[OWNER_VARIABLE] = uid
        self._environment.pop(GENERATION_VARIABLE, None)  # set if this run is itself inside a cluster's driver
        self._job_file = self._volume.control / "job.json"
        self._history, self._durable_step = History(), 0
        self._uid, self._start_id = uid, uuid.uuid4().hex
        with answering(self._volume):
            self._first_attempt = next_attempt(self._volume)
        with writable(self._volume):
            self._volume.logs.mkdir(parents=True, exist_ok=True)
            self._volume.run_exit.unlink(missing_ok=True)

    def run(self) -> ExitRecord:
        """Run attempts until one ends the run. Each attempt reuses the Ray of the one before, if that is sound."""
        ray: LocalRay | None = None
        with (
            self._servers,
            running_agent(self._volume, self._agent_port, self._environment) as agent,
            ExitStack() as cluster,
        ):
            while True:
                try:
                    with answering(self._volume):
                        ray = ray or cluster.enter_context(self._new_ray())
                        self._servers.wait(self._view.note, self._asked)
                        record, code = self._attempt(ray, agent)
                except (InfrastructureError, StorageFullError) as error:
                    if not isinstance(error.__cause__, OSError):  # reward models are not ready: no driver helps
                        raise
                    record, code = exit_record(error), error.exit_code
                outcome = self._recover(record, code, ray)
                if isinstance(outcome, ExitRecord):
                    return outcome
                if outcome is Action.REBUILD_CLUSTER or (ray is not None and ray.is_gone()):
                    cluster.close()
                    ray = None

    def _new_ray(self) -> AbstractContextManager[LocalRay]:
        return local_ray(
            self._run.gpus, self._run.spec.rollout.engine, self._volume.logs / "ray.log", self._environment
        )

    def _attempt(self, ray: LocalRay, agent: Agent) -> tuple[ExitRecord, int]:
        """Run one driver to its end. Returns its exit record, or ours if it left none, and its exit code."""
        attempt = next_attempt(self._volume)
        self._write_job()
        with _driver(self._volume, attempt, self._job_file, ray, self._environment) as driver:
            self._stop.driver = driver
            early = self._asked()  # before the driver can handle the signal
            if early:
                driver.kill()
            hung = self._follow(attempt, driver, ray, agent)
        record = read_exit(self._volume, attempt) or hung
        if record is None:
            unready = driver.returncode == -signal.SIGTERM  # it had no handler yet, so it had not begun
            stopped = self._stop.signals > 1 or (self._stop.asked and (early or unready))
            record = self._stop.record() if stopped else lost(driver.returncode, self._volume)
        return record, driver.returncode

    def _follow(self, attempt: int, driver: Child, ray: LocalRay, agent: Agent) -> ExitRecord | None:
        """Poll until the driver has ended. Returns a record if the supervisor killed it because it hung."""
        stopping = False
        takeover = self._news_of_takeover(attempt)
        heartbeat = DriverHeartbeat(self._volume, parse_duration(self._run.spec.recovery.hang_after))
        while driver.poll() is None and self._stop.signals < 2:  # a second signal has killed all children
            if self._asked() and not stopping:
                stopping = True
                self._view.note("stopping: the current step finishes and is saved first; Ctrl-C again stops at once")
            for news in (agent.news(), next(takeover, None)):
                if news:
                    self._view.note(news)
            self._servers.restart_ended(self._view.note)
            self._view.poll()
            if ray.is_gone():
                _end_orphan(driver)
            if heartbeat.is_overdue():
                driver.kill()
                message = f"the driver gave no sign of life for {heartbeat.seconds:.0f} s and was killed"
                return ExitRecord(code=ExitCode.INFRASTRUCTURE, reason="DriverHung", message=message)
            time.sleep(POLL_SECONDS)
        return None

    def _recover(self, record: ExitRecord, code: int, ray: LocalRay | None) -> ExitRecord | Action:
        """How the run ended, or the action to take now, after its backoff."""
        if self._stop.asked:
            return record
        failure = self._failure(record, code, ray)
        decision = decide_recovery(failure, self._history, self._run.spec.recovery, LOCAL_LEVELS)
        self._history = self._history.after(failure, decision)
        if decision.action is Action.GIVE_UP and self._run.spec.recovery.failure_rules:
            self._view.note(decision.message)
        if decision.action not in (Action.RESTART_DRIVER, Action.REBUILD_CLUSTER):
            given_up = {"reason": decision.reason, "message": decision.message}
            return record if decision.reason == failure.reason else record.model_copy(update=given_up)
        self._view.note(decision.message)
        if self._wait(decision.delay):
            message = "stopped before the next attempt; run the same command to continue"
            return ExitRecord(code=ExitCode.STOPPED, reason="StoppedOnRequest", message=message)
        return decision.action

    def _failure(self, record: ExitRecord, code: int, ray: LocalRay | None) -> Failure:
        with suppress(InfrastructureError):  # the volume does not answer: keep the last known step
            self._durable_step = durable_step(self._volume)
        durable = self._durable_step
        if ray is not None and ray.is_gone():
            message = f"{ray.last_words or _how(ray.head.returncode)} (more in {ray.log})"
            return Failure(Component.RAY, "RayLost", message, durable_step=durable)
        return Failure(Component.DRIVER, record.reason, record.message, code, durable_step=durable)

    def _write_job(self) -> None:
        job = DriverJob(
            name=self._run.name, uid=self._uid, start_id=self._start_id, base_dir=str(self._run.base_dir),
            spec=self._run.spec, reward_models=self._servers.urls,
        )  # fmt: skip
        write_job(job, self._job_file)

    def _asked(self) -> bool:
        """Whether the run should stop. A request on the volume counts even if the driver cannot read it."""
        if not self._stop.asked and (read_object(self._volume.request) or {}).get("stop"):
            self._stop.request()
        return self._stop.asked

    def _news_of_takeover(self, attempt: int) -> Iterator[str | None]:
        """Where an attempt resumes, once it has decided; nothing if it begins the run."""
        while True:
            claim = None
            with suppress(OSError):  # read again at the next poll; a healthy driver continues
                claim = read_claim(self._volume, attempt)
            if claim is not None and claim.resumed_step == 0 and attempt == self._first_attempt:
                return
            if claim is not None and claim.resumed_step is not None:
                source = "from" if claim.resumed_step == claim.checkpoint_step else "with living workers, after"
                goes_on = f"goes on {source} step {claim.resumed_step}"
                yield f"attempt {attempt} {goes_on if claim.resumed_step else 'begins at the first step'}"
                return
            yield None

    def _wait(self, seconds: float) -> bool:
        """Whether a stop was requested within `seconds`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._asked():
            self._view.poll()
            time.sleep(POLL_SECONDS)
        return self._asked()


def _end_orphan(driver: Child) -> None:
    """Ray is gone: wait for the driver to notice and record it, else kill it."""
    try:
        driver.wait(ORPHAN_SECONDS)
    except subprocess.TimeoutExpired:
        driver.kill()


@contextmanager
def _driver(
    volume: Volume, attempt: int, job_file: Path, ray: LocalRay, environment: Mapping[str, str]
) -> Iterator[Child]:
    child = start_child(
        [*RLJOB, "driver", "--job", str(job_file), "--dir", str(volume.root), "--attempt", str(attempt),
         "--ray-address", f"file:{ray.address_file}"],
        volume.logs / "driver.log",
        environment,
    )  # fmt: skip
    try:
        yield child
    finally:
        end_child(child)


def lost(code: int, volume: Volume) -> ExitRecord:
    """The exit record of a driver that left none."""
    known = code if code in REASONS else ExitCode.INFRASTRUCTURE
    if known == ExitCode.STORAGE_FULL:
        message = no_room(volume)
    else:
        how = (last_words(last_line(volume.logs / "driver.log")) if code > 0 else "") or _how(code)
        message = f"the driver left no exit record: {how}"
    return ExitRecord(code=known, reason=REASONS.get(known, Reason.DRIVER_LOST), message=message)


def _how(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exited with code {code}"
