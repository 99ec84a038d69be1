"""Waits with a deadline far above what is needed: the machine may be busy."""

import time

SECONDS = 200


def eventually(condition):
    """What `condition` returns once that is true."""
    deadline = time.monotonic() + SECONDS
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {SECONDS} s"
        time.sleep(0.1)
    return result
