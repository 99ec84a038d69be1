"""One local run, from a file to an exit code: Ray, the agent and the driver are its children.

prepare     the file is judged, the run's folder made ready: nothing runs yet
supervise   ray ── agent ── driver, and a view of what they write
"""

import os
import secrets
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rljob_api import resolve
from rljob_api.contract import LAYOUT_VERSION, ExitCode, ExitRecord
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.validation import load_rljob, with_ranks
from rljob_trainer.controller.attempt import read_exit
from rljob_trainer.controller.job import DriverJob
from rljob_trainer.errors import DataError, JobError
from rljob_trainer.local.machine import end_child, gpus_present, start_child
from rljob_trainer.progress.run_info import RunInfo
from rljob_trainer.progress.state import last_attempt
from rljob_trainer.progress.views import Reporter, Style, open_reporter
from rljob_trainer.volume import Volume, read_json, write_json

POLL_SECONDS = 0.2

NOT_APPLIED = ("cluster",)
"""Blocks of the spec that only a cluster can execute."""


@dataclass(frozen=True, slots=True)
class LocalRun:
    """A run that is ready to start. notes: what a person should know before it does."""

    job: DriverJob
    volume: Volume
    gpus: int
    environment: dict[str, str]
    notes: tuple[str, ...]

    def supervise(self, style: Style | None, agent_port: int) -> int:
        """Run one attempt and show it. Returns the exit code of `rljob run`."""
        from rljob_trainer.local.ray_cluster import local_ray

        attempt = last_attempt(self.volume) + 1
        view = open_reporter(self._info(), style)
        view.start()
        for note in self.notes:
            view.note(note)
        os.environ.update(self.environment)  # Ray's workers inherit it from here
        with (
            local_ray(self.gpus) as address,
            self._agent(agent_port),
            self._driver(address, attempt) as driver,
            interrupts_go_to(driver, view),
        ):
            while driver.poll() is None:
                view.poll()
                time.sleep(POLL_SECONDS)
        record = read_exit(self.volume, attempt) or lost(driver.returncode)
        view.finish(record)
        return record.code

    def _info(self) -> RunInfo:
        spec = self.job.spec
        return RunInfo(
            name=self.job.name,
            uid=self.job.uid,
            directory=self.volume.root,
            model=spec.model.path or "from scratch",
            engine=spec.rollout.engine,
            ranks=spec.ranks,
        )

    @contextmanager
    def _driver(self, address: str, attempt: int) -> Iterator[subprocess.Popen[bytes]]:
        job_file = self.volume.control / "job.json"
        self.job.write(job_file)
        child = start_child(
            [*RLJOB, "driver", "--job", str(job_file), "--dir", str(self.volume.root), "--attempt", str(attempt),
             "--ray-address", address],
            self.volume.logs / "driver.log",
        )  # fmt: skip
        try:
            yield child
        finally:
            end_child(child)

    @contextmanager
    def _agent(self, port: int) -> Iterator[None]:
        token_file = self.volume.control / "agent-token"
        token_file.parent.mkdir(parents=True, exist_ok=True)
        token_file.touch(mode=0o600)
        token_file.write_text(secrets.token_urlsafe(32))
        child = start_child(
            [*RLJOB, "agent", "--dir", str(self.volume.root), "--host", "127.0.0.1", "--port", str(port),
             "--token-file", str(token_file)],
            self.volume.logs / "agent.log",
        )  # fmt: skip
        try:
            yield
        finally:
            end_child(child)
            token_file.unlink(missing_ok=True)


RLJOB = (sys.executable, "-m", "rljob_trainer.cli")


def prepare(file: Path, directory: Path | None, ranks: int | None, overrides: Sequence[str]) -> LocalRun:
    """Judge the file and make the run's folder ready.

    Raises InvalidRLJob with every problem of the file, JobError for what does not fit this machine, DataError where
    the folder belongs to another job.
    """
    job = load_rljob(file, overrides)
    gpus = gpus_present()
    ranks = ranks or gpus or 1
    if 0 < gpus < ranks:
        raise JobError(f"--ranks {ranks} needs as many GPUs, and {gpus} are present: lower it")
    written = job.spec.cluster != type(job.spec.cluster)()
    spec = resolve(with_ranks(job.spec, ranks, gpus=gpus > 0))
    root = (directory or Path("runs") / job.metadata.name).resolve()
    uid = _adopt(Volume(root), job.metadata.name)
    driver_job = DriverJob(name=job.metadata.name, uid=uid, base_dir=str(file.resolve().parent), spec=spec)
    notes = (f"not applied on this machine: {', '.join(NOT_APPLIED)}",) if written else ()
    return LocalRun(driver_job, Volume(root), ranks if gpus else 0, environment_of(job.spec), notes)


def environment_of(spec: RLJobSpec) -> dict[str, str]:
    """The variables of spec.env; a Secret's are the caller's variables of the same name.

    Raises JobError where the caller has none.
    """
    values: dict[str, str] = {}
    for index, variable in enumerate(spec.env):
        value = variable.value if variable.value_from is None else os.environ.get(variable.name)
        if value is None:
            raise JobError(
                f"a cluster reads {variable.name} from a Secret; here, set the variable {variable.name}",
                field=f"spec.env[{index}]",
            )
        values[variable.name] = value
    return values


def lost(code: int | None) -> ExitRecord:
    """What is known of a driver that left no record."""
    how = f"signal {-code} ended it" if code is not None and code < 0 else f"it ended with code {code}"
    return ExitRecord(code=ExitCode.INFRASTRUCTURE, reason="DriverLost", message=f"the driver left no record: {how}")


@contextmanager
def interrupts_go_to(driver: "subprocess.Popen[bytes]", view: Reporter) -> Iterator[None]:
    """Ctrl-C and SIGTERM are the driver's: the first asks it to save and stop, the second ends it."""
    asked = False

    def forward(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if driver.poll() is None:
            driver.send_signal(signal.SIGKILL if asked else signal.SIGTERM)
        if not asked:
            view.note("stopping after this step, with a checkpoint; Ctrl-C again stops at once")
        asked = True

    previous = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _adopt(volume: Volume, name: str) -> str:
    """The uid of the run in that folder, which is made where it is new."""
    try:
        found = read_json(volume.job)
        if found is None:
            uid = str(uuid.uuid4())
            write_json(volume.job, {"jobUid": uid, "name": name, "layoutVersion": LAYOUT_VERSION})
            return uid
    except OSError as error:
        raise DataError(f"{volume.root} cannot be written: {error.strerror}; choose another --dir") from error
    if found["name"] != name:
        raise DataError(f"{volume.root} holds the run {found['name']}: choose another --dir for {name}")
    if found["layoutVersion"] != LAYOUT_VERSION:
        raise DataError(f"{volume.root} has layout {found['layoutVersion']}, and this version reads {LAYOUT_VERSION}")
    return str(found["jobUid"])
