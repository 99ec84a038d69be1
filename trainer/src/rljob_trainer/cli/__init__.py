"""The command `rljob`, defined in `app`. This module handles Ctrl-C before the slow imports."""

import _signal  # type: ignore[import-not-found]  # built in; `signal` takes as long to import as Python to start
import os
import sys

_MAKE_ROWS = ("driver", "eval")
"""Commands that generate rows."""


def main() -> None:
    """The console script. Ctrl-C ends it without a traceback until a command installs its own handler."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # else the parent made us ignore it
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    if sys.argv[1:] and sys.argv[1] in _MAKE_ROWS:
        _fix_hash_seed()
    from rljob_trainer.cli.app import execute

    execute()


def _fix_hash_seed() -> None:
    """Start this process again with the hash seed of reward processes, so that both make the same questions."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
