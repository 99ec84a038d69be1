"""A real rank trains while its checkpoint is written, and the checkpoint holds what the rank was when it began."""

import os
import random
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from rljob_trainer.checkpoint import shards
from rljob_trainer.checkpoint.manifest import RANKS, verify
from rljob_trainer.checkpoint.random_state import random_state, restore_random_state, write_random_state
from rljob_trainer.errors import StorageFullError
from rljob_trainer.volume import Volume
from tests.rljob_trainer.checkpoint_support import checkpoints_of, make_spec, names, save
from tests.rljob_trainer.rank_support import alone, parameters, whole, write_model


class LocalRanks:
    """A rank of this process, as the driver knows it."""

    def __init__(self, worker):
        self.worker = worker

    def begin_save(self, directory):
        self.worker.begin_save(directory)

    def finish_save(self):
        return [self.worker.finish_save()]


@pytest.fixture
def folder(tmp_path):
    return write_model(tmp_path / "weights")


@pytest.fixture
def volume(tmp_path):
    return Volume(tmp_path / "run")


@pytest.fixture
def answers(monkeypatch):
    """An event before which the volume makes nothing durable: every fsync, torch's too, waits for it."""
    fsync, answers = os.fsync, threading.Event()

    def slowly(descriptor):
        assert answers.wait(60)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slowly)
    return answers


def in_training(worker, folder):
    worker.load(folder)
    worker.begin_stage("sft")
    train(worker)


def train(worker):
    """One optimizer step on a loss of our own; it waits as every update does."""
    worker.saver.wait_staged()
    sum((parameter**2).sum() for parameter in worker.policy.module.parameters()).backward()
    worker.trainee.finish_minibatch(1e-2)


def momenta(worker):
    state = worker.trainee.optimizer.state
    return [whole(state[parameter]["exp_avg"]) for parameter in worker.policy.module.parameters()]


# ---------------------------------------------------------------------- training goes on


def test_training_goes_on_while_a_slow_volume_is_written(folder, volume, answers):
    alone(make_spec(), save_slowly, folder, volume, answers)


def save_slowly(worker, folder, volume, answers):
    in_training(worker, folder)
    weights, momentum = parameters(worker), momenta(worker)
    checkpoints = checkpoints_of(volume, 1)
    checkpoints.begin(1, {"step": 1}, 0.5, LocalRanks(worker))
    for _ in range(10):
        train(worker)
        assert checkpoints.poll() is None
    assert names(volume) == []
    answers.set()
    while (durable := checkpoints.poll()) is None:
        train(worker)
    assert checkpoints.poll() is None, "reported once"
    verify(durable)
    worker.restore(str(durable.path / RANKS))
    torch.testing.assert_close(parameters(worker), weights, rtol=0, atol=0)
    torch.testing.assert_close(momenta(worker), momentum, rtol=0, atol=0)


def test_a_save_waits_for_the_one_before_it(folder, volume, answers):
    alone(make_spec(), save_twice, folder, volume, answers)


def save_twice(worker, folder, volume, answers):
    in_training(worker, folder)
    checkpoints = checkpoints_of(volume, 1)
    threading.Timer(0.5, answers.set).start()
    for step in (1, 2):
        checkpoints.begin(step, {"step": step}, None, LocalRanks(worker))
    assert names(volume) == ["step-1-a1"]
    assert names([checkpoints.poll()]) == ["step-1-a1"]
    checkpoints.finish()
    assert names([checkpoints.poll()]) == ["step-2-a1"]
    assert names(volume) == ["step-1-a1", "step-2-a1"]


@pytest.mark.parametrize("method", ["load", "begin_stage", "supervised_step", "update", "restore"])
def test_whatever_changes_the_state_waits_until_it_has_been_copied(folder, volume, method):
    alone(make_spec(), save_while_copying_takes_long, folder, volume, method)


def save_while_copying_takes_long(worker, folder, volume, method):
    in_training(worker, folder)
    go_on, take = threading.Event(), worker.saver._copy.take
    worker.saver._copy.take = lambda state: go_on.wait() and take(state)
    (volume.root / RANKS).mkdir(parents=True)
    worker.begin_save(str(volume.root / RANKS))
    before = parameters(worker)
    changing = threading.Thread(target=change, args=(worker, method, folder), daemon=True)
    changing.start()
    changing.join(0.1)
    assert changing.is_alive()
    torch.testing.assert_close(parameters(worker), before, rtol=0, atol=0)
    go_on.set()
    changing.join(20)
    assert not changing.is_alive()
    assert worker.finish_save()


def change(worker, method, folder):
    """Load and begin_stage do their work; of the others it is enough to see that they wait before anything else."""
    arguments = {"load": [folder], "begin_stage": ["sft"], "restore": ["/nowhere"]}
    takes = {"supervised_step": 5, "update": 4}
    try:
        getattr(worker, method)(*arguments.get(method, [None] * takes.get(method, 0)))
    except Exception:  # noqa: BLE001  arguments that mean nothing
        assert method not in ("load", "begin_stage")


def test_a_failure_shows_once_and_the_next_save_works(folder, volume):
    alone(make_spec(), fail_then_save, folder, volume)


def fail_then_save(worker, folder, volume):
    in_training(worker, folder)
    checkpoints, ranks = checkpoints_of(volume, 1), LocalRanks(worker)
    begin_save = worker.begin_save

    def begin_on_a_full_disk(directory):
        (Path(directory) / "__0_0.distcp").symlink_to("/dev/full")
        begin_save(directory)

    worker.begin_save = begin_on_a_full_disk
    checkpoints.begin(1, {"step": 1}, None, ranks)
    with pytest.raises(StorageFullError, match="no space left"):
        checkpoints.finish()
    assert checkpoints.poll() is None
    assert list(volume.checkpoints.iterdir()) == []
    worker.begin_save = begin_save
    save(checkpoints, 2, {"step": 2}, None, ranks)
    assert names(volume) == ["step-2-a1"]


# ---------------------------------------------------------------------- several ranks


def test_each_rank_names_what_it_wrote(tmp_path, two_ranks):
    folder = write_model(tmp_path / "weights")
    (tmp_path / "ranks").mkdir()
    written = two_ranks.run(make_spec(2), write_shards, folder, str(tmp_path / "ranks"))
    assert [set(each) for each in written] == [
        {".metadata", "__0_0.distcp", "random-0-of-2.json"},
        {"__1_0.distcp", "random-1-of-2.json"},
    ]
    assert {path.name for path in (tmp_path / "ranks").iterdir()} == written[0].keys() | written[1].keys()


def write_shards(worker, folder, directory):
    in_training(worker, folder)
    worker.begin_save(directory)
    return worker.finish_save()


def test_a_large_state_is_written_as_several_files_and_read_back_whole(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "_FILE_BYTES", 1 << 10)
    (tmp_path / "ranks").mkdir()
    alone(make_spec(), save_and_restore, folder, tmp_path / "ranks")
    assert sorted(path.name for path in (tmp_path / "ranks").glob("*.distcp")) == [f"__0_{i}.distcp" for i in range(8)]


def save_and_restore(worker, folder, directory):
    in_training(worker, folder)
    weights, momentum = parameters(worker), momenta(worker)
    worker.begin_save(str(directory))
    written = worker.finish_save()
    assert {path.name for path in directory.iterdir()} == written.keys()
    train(worker)
    worker.restore(str(directory))
    torch.testing.assert_close(parameters(worker), weights, rtol=0, atol=0)
    torch.testing.assert_close(momenta(worker), momentum, rtol=0, atol=0)


# ---------------------------------------------------------------------- random generators


def draws():
    return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.gauss(0, 1), random.random()  # noqa: NPY002


def test_every_generator_continues_where_it_was(tmp_path):
    draws()
    path = write_random_state(random_state(), tmp_path, 1, 2)
    expected = draws()
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    random.seed(99)
    restore_random_state(tmp_path, 1, 2, seed=0)
    assert draws() == expected
    assert path.name == "random-1-of-2.json"


def test_with_another_number_of_ranks_each_is_seeded_differently_and_repeatably(tmp_path):
    write_random_state(random_state(), tmp_path, 0, 2)
    seen = []
    for rank, world, seed in [(0, 4, 0), (1, 4, 0), (0, 4, 1), (0, 4, 0)]:
        restore_random_state(tmp_path, rank, world, seed)
        seen.append(draws())
    assert seen[0] == seen[3]
    for parts in zip(*seen[:3], strict=True):
        assert len({str(part) for part in parts}) == 3


def test_a_rank_restores_its_generators(folder, tmp_path):
    alone(make_spec(), save_and_draw, folder, tmp_path / "ranks")


def save_and_draw(worker, folder, directory):
    in_training(worker, folder)
    worker.begin_save(str(directory))
    expected = draws()
    worker.finish_save()
    worker.restore(str(directory))
    assert draws() == expected
