"""Processes of tests are forked from one that has the imports: torch and transformers take each 5 s of a core."""

import multiprocessing
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.rljob_trainer.rank_support import Ranks

FORKED = ("rank_support", "rollout_support", "weight_sync_processes", "test_attempt_lineage", "test_checkpoint_frozen")

multiprocessing.set_forkserver_preload([f"tests.rljob_trainer.{name}" for name in FORKED])


@pytest.fixture(scope="session")
def two_ranks() -> "Iterator[Ranks]":
    """Of a CPU; for every test that kills neither."""
    from tests.rljob_trainer.rank_support import Ranks

    with Ranks(2) as ranks:
        yield ranks
