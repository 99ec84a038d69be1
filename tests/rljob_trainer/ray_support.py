"""A Ray for one test module."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import ray

TRIES = 3


@contextmanager
def own_ray(namespace: str) -> Iterator[None]:
    """Connected to; its workers import what this process does.

    Ray gives its own processes 30 s to start, which a busy machine may not have.
    """
    path = os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])
    with pytest.MonkeyPatch.context() as patch:  # what Ray adds to the environment, such as its token, stays
        patch.setenv("PYTHONPATH", path)  # no runtime environment, for which Ray starts an agent
        _connect(namespace)
    try:
        yield
    finally:
        ray.shutdown()


def _connect(namespace: str) -> None:
    for left in reversed(range(TRIES)):
        try:
            ray.init(
                address="local",  # another test's Ray may run on this machine
                num_cpus=2, namespace=namespace, include_dashboard=False, log_to_driver=False, logging_level="error",
                object_store_memory=100 << 20,
            )  # fmt: skip
            return
        except Exception as error:  # Ray raises no other
            ray.shutdown()
            if "timed out during startup" not in str(error) or not left:
                raise
