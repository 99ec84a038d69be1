"""A supervised job makes a model; an RL job starts from it, on two ranks."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rljob_trainer.checkpoint.manifest import list_checkpoints
from rljob_trainer.volume import Volume
from tests.rljob_trainer.run_support import Ended, Machine, machine, steps, trained, write_job

pytestmark = pytest.mark.slow

ROWS, BATCH = 24, 8
SHADOWS = ("random", "yaml", "torch")
"""Files of these names are where the runs are started."""


@dataclass
class Chain:
    place: Machine
    supervised: Path
    supervised_job: Path
    first: Ended
    exported: Ended
    reinforced: Path
    second: Ended


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    folder = tmp_path_factory.mktemp("chain")
    data = {"train": [f"synthetic://reverse-text?rows={ROWS}&maxLength=6"], "promptsPerStep": BATCH}
    first_job = write_job(
        folder, "supervised", algorithm={"preset": "sft"}, rollout=None, rewards=None, data=data,
        training={"steps": 1000, "epochs": 2},
    )  # fmt: skip
    second_job = write_job(
        folder,
        "reinforced",
        model={"fromScratch": None, "path": "exported"},
        algorithm={"preset": "rloo", "kl": {"placement": "reward", "coefficient": 0.1, "estimator": "k1"}},
    )
    with machine() as place:
        place.folder = folder
        for name in SHADOWS:
            (folder / f"{name}.py").write_text("raise SystemExit('a file of the user, who did not ask for it')")
        first = place.rljob("run", first_job, "--dir", folder / "supervised")
        exported = place.rljob("export", folder / "supervised", folder / "exported", "--dtype", "float32")
        second = place.rljob("run", second_job, "--dir", folder / "reinforced", "--ranks", "2")
        yield Chain(place, folder / "supervised", first_job, first, exported, folder / "reinforced", second)


def test_epochs_end_a_run_before_its_last_step_with_a_checkpoint(chain: Chain):
    assert chain.first.code == 0, chain.first.out
    passes = 2 * ROWS // BATCH
    assert steps(chain.supervised, "sft") == list(range(1, passes + 1))
    assert [ref.manifest.step for ref in list_checkpoints(Volume(chain.supervised))] == [passes]


def test_a_run_whose_data_ended_says_what_would_go_on(chain: Chain):
    again = chain.place.rljob("run", chain.supervised_job, "--dir", chain.supervised)
    assert again.code == 0
    assert "nothing left to do" in again.out
    assert "training.epochs" in again.out


def test_the_export_of_a_supervised_job_is_where_an_rl_job_starts(chain: Chain):
    assert chain.exported.code == 0, chain.exported.out
    assert chain.second.code == 0, chain.second.out
    assert steps(chain.reinforced, "rl") == [1, 2]


def test_two_ranks_train_with_a_penalty_in_the_reward(chain: Chain):
    first, second = trained(chain.reinforced)
    assert "2 ranks" in chain.second.out
    assert first["actor/kl"] == pytest.approx(0.0, abs=1e-5), "the policy still is its own reference"
    assert second["actor/kl"] != 0.0
    assert max(first["sync/probe_mean"], second["sync/probe_mean"]) < 1e-3
