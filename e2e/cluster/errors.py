class ClusterError(Exception):
    """For a person: what failed and what to do about it."""
