"""The command `rljob`. It lives in `app`; here is what must come before anything that takes time, such as imports."""

import _signal  # type: ignore[import-not-found]  # built in; importing `signal` takes as long as Python's own start


def main() -> None:
    """The console script. Ctrl-C ends it without a traceback, from here on until a command has a handler of its own."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # else somebody has us ignore it
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from rljob_trainer.cli.app import execute

    execute()
