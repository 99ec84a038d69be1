"""Ranks that are gone end with an error for the others that lets the attempt be tried again."""

import os

from rljob_trainer.errors import InfrastructureError
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.rank_support import MARK, Ranks, plans_of, random_trajectories, write_model


def test_a_rank_that_dies_is_an_infrastructure_error_for_the_others(tmp_path):
    """So the attempt is tried again, whichever rank's error arrives first."""
    with Ranks(2) as ranks:
        survivor, _ = ranks.run(make_spec(2), supervised_step_without_rank_1, write_model(tmp_path))
    assert isinstance(survivor, InfrastructureError)
    assert "a rank lost its connection" in str(survivor)


def supervised_step_without_rank_1(worker, folder):
    sequences = random_trajectories(4)
    plans, totals = plans_of(sequences, 2, 50)
    worker.load(folder)
    worker.begin_stage("sft")
    if worker.settings.rank == 1:
        os._exit(1)
    worker.supervised_step(plans[0], totals, sequences, 1e-3, MARK)
