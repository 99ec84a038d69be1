class ClusterError(Exception):
    """For a person: what failed and what to do about it."""


class NotHere(ClusterError):
    """What was asked for is not to be had on this machine; tests that need it did not run."""
