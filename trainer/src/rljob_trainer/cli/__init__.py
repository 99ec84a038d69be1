"""The command `rljob`, defined in `app`. This module handles Ctrl-C before the slow imports."""

import _signal  # type: ignore[import-not-found]  # built in; `signal` takes as long to import as Python to start


def main() -> None:
    """The console script. Ctrl-C ends it without a traceback until a command installs its own handler."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # else the parent made us ignore it
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from rljob_trainer.cli.app import execute

    execute()
