"""The agent of a local run, in its own process so that it answers while the driver is dead."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from rljob_trainer.local.machine import RLJOB, end_child, last_line, start_child
from rljob_trainer.progress.views.summary import shown_path
from rljob_trainer.volume import Volume


class Agent:
    """The agent's process, restarted with the same token_file if it ends after it listened."""

    def __init__(self, volume: Volume, port: int, token_file: Path, environment: Mapping[str, str]) -> None:
        self._token_file, self._log, self._environment = token_file, volume.logs / "agent.log", environment
        self._command = [
            *RLJOB, "agent", "--dir", str(volume.root), "--host", "127.0.0.1", "--port", str(port),
            "--token-file", str(token_file),
        ]  # fmt: skip
        self._start()

    def _start(self) -> None:
        self._child = start_child(self._command, self._log, self._environment)
        self._listens = self._failed = False

    def news(self) -> str | None:
        """Each change once: the address where it listens, a restart, or a failed start."""
        if self._failed:
            return None
        if self._child.poll() is not None:
            if self._listens:
                self._start()
                return "the agent exited; restarting it"
            self._failed = True
            return f"the agent did not start: {last_line(self._log)}"
        if not self._listens and "http://" in (line := last_line(self._log)):
            self._listens = True
            return f"{line}, token in {shown_path(self._token_file)}"
        return None

    def end(self) -> None:
        end_child(self._child)


@contextmanager
def running_agent(volume: Volume, port: int, environment: Mapping[str, str]) -> Iterator[Agent]:
    token_file = volume.control / "agent-token"
    token_file.unlink(missing_ok=True)
    token_file.touch(mode=0o600, exist_ok=False)  # a file of another user is none of ours
    token_file.write_text(secrets.token_urlsafe(32))
    agent = Agent(volume, port, token_file, environment)
    try:
        yield agent
    finally:
        agent.end()
        with suppress(OSError):  # must not replace the run's own result
            token_file.unlink()
