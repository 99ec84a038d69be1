"""The agent beside a run: a process of its own, so that it answers while the driver is dead."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rljob_trainer.local.machine import RLJOB, Child, end_child, last_line, start_child
from rljob_trainer.volume import Volume


@dataclass(slots=True)
class Agent:
    """The agent, and whether it has been announced."""

    child: Child
    log: Path
    token_file: Path
    announced: bool = False

    def news(self) -> str | None:
        """Where it listens, or that it does not; once."""
        said = "" if self.announced else last_line(self.log)
        if "http://" in said:
            self.announced = True
            return f"{said}, token in {self.token_file}"
        if not self.announced and self.child.poll() is not None:
            self.announced = True
            return f"the agent did not start: {said}"
        return None


@contextmanager
def running_agent(volume: Volume, port: int, environment: Mapping[str, str]) -> Iterator[Agent]:
    token_file = volume.control / "agent-token"
    token_file.unlink(missing_ok=True)
    token_file.touch(mode=0o600)
    token_file.write_text(secrets.token_urlsafe(32))
    log = volume.logs / "agent.log"
    child = start_child(
        [*RLJOB, "agent", "--dir", str(volume.root), "--host", "127.0.0.1", "--port", str(port),
         "--token-file", str(token_file)],
        log,
        environment,
    )  # fmt: skip
    try:
        yield Agent(child, log, token_file)
    finally:
        end_child(child)
        token_file.unlink(missing_ok=True)
