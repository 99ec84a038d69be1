"""The example guess learns: to begin with 2, which wins every game, though a reward comes only at the end."""

from pathlib import Path
from statistics import mean

import pytest

from tests.rljob_api.example_files import EXAMPLES
from tests.rljob_trainer.run_support import finish, machine, trained


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_example_learns_to_win_nearly_every_game(tmp_path: Path):
    with machine() as place:
        ended = finish(place.start_run(EXAMPLES / "guess/rljob.yaml", "--dir", tmp_path / "run"), 1000)
    assert ended.code == 0, ended.out
    won = [line["reward/mean"] for line in trained(tmp_path / "run") if "reward/mean" in line]
    assert len(won) == 60
    assert mean(won[:5]) < 0.85, "a random first guess wins 7 of 9 games"
    assert mean(won[-5:]) > 0.9
