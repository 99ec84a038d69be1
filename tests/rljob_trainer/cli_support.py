"""Commands of `rljob` within the test's own process, which has imported what they need."""

import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from unittest import mock

from rljob_trainer.cli.app import execute


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def rljob(*arguments: object, cwd: Path = Path()) -> Done:
    out, err, code = StringIO(), StringIO(), 0
    command = mock.patch.object(sys, "argv", ["rljob", *map(str, arguments)])
    with command, chdir(cwd), redirect_stdout(out), redirect_stderr(err):
        try:
            execute()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Done(code, out.getvalue(), err.getvalue())
