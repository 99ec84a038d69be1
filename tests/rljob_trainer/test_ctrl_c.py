"""Ctrl-C while a command still imports what it needs: it ends at once, and says nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

RLJOB = Path(sys.executable).with_name("rljob")
"""The console script, as people call it."""

PRESSED = """
import os, sys

def press(event, arguments):
    if event == "import" and arguments[0] == "{module}":
        os.kill(os.getpid(), 2)

sys.addaudithook(press)
"""
"""sitecustomize. A clock would not tell how far a command is; the module that it is about to import does."""


def pressed(folder: Path, module: str, *command: object) -> "subprocess.CompletedProcess[str]":
    """The command, with Ctrl-C as soon as it begins to import `module`."""
    (folder / "sitecustomize.py").write_text(PRESSED.format(module=module))
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}
    whole = [str(each) for each in command]
    return subprocess.run(whole, env=environment, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("module", ["rljob_trainer.cli.app", "enum", "typer", "rljob_trainer.local.lock", "pyarrow"])
def test_it_ends_without_a_word(tmp_path: Path, module: str) -> None:
    ended = pressed(tmp_path, module, RLJOB, "run", "none.yaml")
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_who_is_told_to_ignore_it_goes_on(tmp_path: Path) -> None:
    """As a shell tells what it runs in the background."""
    ended = pressed(tmp_path, "typer", "sh", "-c", "trap '' INT; exec \"$@\"", "sh", RLJOB, "--version")
    assert (ended.returncode, ended.stdout.split()[:1], ended.stderr) == (0, ["rljob"], "")
