"""`rljob status`: the state of a run from its directory."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Any, Literal, TypeVar

from rljob_api.contract import ExitCode, ExitRecord
from rljob_api.v1alpha1 import Progress
from rljob_trainer.checkpoint.manifest import CheckpointRef, counting, newest, survey
from rljob_trainer.errors import DataError, InfrastructureError
from rljob_trainer.progress.reporter import HEARTBEAT
from rljob_trainer.progress.state import SILENT_AFTER, last_attempt, read_object, run_name, silence, supervised
from rljob_trainer.progress.views.format import duration
from rljob_trainer.volume import Volume

State = Literal["empty", "running", "lost", "done", "stopped", "failed"]
"""lost: the last attempt has no exit record, and its driver died or was silent for SILENT_AFTER seconds."""

M = TypeVar("M", ExitRecord, Progress)

_BY_CODE: Mapping[int, State] = {
    ExitCode.DONE: "done", ExitCode.STOPPED: "stopped", 128 + SIGINT: "stopped", 128 + SIGTERM: "stopped"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunOverview:
    """exit: of the run, else of its last attempt.

    checkpoint: the newest readable one. unread: why a newer one, or all, cannot be read; "" if there is none.
    silence: seconds since the driver's last heartbeat; None before the first.
    """

    name: str
    directory: Path
    state: State
    attempt: int
    progress: Progress | None
    checkpoint: CheckpointRef | None
    unread: str
    exit: ExitRecord | None
    silence: float | None

    def as_json(self) -> dict[str, Any]:
        checkpoint = self.checkpoint
        return {
            "name": self.name,
            "directory": str(self.directory),
            "state": self.state,
            "attempt": self.attempt,
            "silence": None if self.silence is None else round(self.silence, 1),
            "progress": self.progress.model_dump(mode="json", by_alias=True) if self.progress else None,
            "checkpoint": {"step": checkpoint.manifest.step, "path": str(checkpoint.path)} if checkpoint else None,
            "unread": self.unread or None,
            "exit": self.exit.model_dump(mode="json", by_alias=True) if self.exit else None,
        }


def look_at(directory: Path) -> RunOverview:
    """Raises DataError if the directory does not exist."""
    if not directory.is_dir():
        raise DataError(f"{directory} is not a directory; pass a run's directory, such as runs/NAME")
    volume = Volume(directory)
    attempt = last_attempt(volume)
    run_ended = _model(ExitRecord, volume.run_exit)
    ended = run_ended or _model(ExitRecord, volume.exit_record(attempt))
    quiet, held = silence(volume), supervised(volume)
    checkpoint, unread = _checkpoint(volume)
    return RunOverview(
        name=run_name(directory),
        directory=directory,
        state="running" if held and run_ended is None else _state(attempt, ended, None if held is False else quiet),
        attempt=attempt,
        progress=_model(Progress, volume.progress),
        checkpoint=checkpoint,
        unread=unread,
        exit=ended,
        silence=quiet,
    )


def _checkpoint(volume: Volume) -> tuple[CheckpointRef | None, str]:
    """RunOverview's `checkpoint` and `unread`."""
    try:
        found = survey(volume)
    except InfrastructureError as error:
        return None, error.message
    refs, last = counting(found), newest(found)
    return refs[-1] if refs else None, last.problem if last else ""


def lines(run: RunOverview) -> list[str]:
    """The summary for people, one fact per line."""
    rows = [("job", f"{run.name} ({run.directory})"), ("state", _state_text(run))]
    if progress := run.progress:
        rows.append(("step", _step_text(run.state, progress)))
        rewards = (("", progress.reward), ("validation ", progress.validation_reward))
        if shown := [f"{label}{value:.3f}" for label, value in rewards if value is not None]:
            rows.append(("reward", ", ".join(shown)))
        if progress.tokens_per_second is not None:
            rows.append(("speed", f"{progress.tokens_per_second:,.0f} tokens/s"))
        if progress.engine_difference is not None:
            rows.append(("engine", f"differs from the trainer by {progress.engine_difference:.2g} nats"))
    if run.checkpoint:
        rows.append(("checkpoint", f"step {run.checkpoint.manifest.step} ({run.checkpoint.path})"))
    if run.unread:
        rows.append(("unread", run.unread))
    if run.exit:
        rows.append(("exit", f"{run.exit.code} {run.exit.reason}: {run.exit.message}"))
        if run.exit.field:
            rows.append(("field", run.exit.field))
    return [f"{label:<11} {text}" for label, text in rows]


def _state(attempt: int, ended: ExitRecord | None, quiet: float | None) -> State:
    """quiet: seconds of silence; None if the supervisor is dead."""
    if ended is not None:
        return _BY_CODE.get(ended.code, "failed")
    if attempt == 0:
        return "empty"
    return "running" if quiet is not None and quiet < SILENT_AFTER else "lost"


def _state_text(run: RunOverview) -> str:
    heard = "no heartbeat yet" if run.silence is None else f"last heartbeat {duration(run.silence)} ago"
    silent = run.silence is not None and run.silence > 2 * HEARTBEAT
    ended = f" has ended ({run.exit.reason})" if run.exit is not None else ""  # its supervisor still works
    texts: Mapping[State, str] = {
        "empty": "not started",
        "running": f"running, attempt {run.attempt}" + ended + (f"; {heard}" if silent else ""),
        "lost": f"attempt {run.attempt} died without an exit record; {heard}",
    }
    return texts.get(run.state, f"{run.state}, attempt {run.attempt}")


def _step_text(state: State, progress: Progress) -> str:
    if not progress.total_steps:
        return progress.phase
    text = f"{progress.step}/{progress.total_steps} ({progress.percent:.0f} %)"
    if state != "running":
        return text
    eta = f", eta {duration((progress.eta - datetime.now(UTC)).total_seconds())}" if progress.eta else ""
    return f"{text}, {progress.stage} {progress.phase}{eta}"


def _model(kind: type[M], path: Path) -> M | None:
    try:
        return kind.model_validate(read_object(path))
    except ValueError:
        return None
