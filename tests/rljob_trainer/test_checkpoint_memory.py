"""Host memory of checkpoints: got before the first save, kept from save to save, no more of it than there is state."""

import threading
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from rljob_trainer.checkpoint.host_copy import HostCopy
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.rank_support import (
    MARK,
    alone,
    bundle_of,
    plans_of,
    random_advantages,
    random_trajectories,
    write_model,
)

TRAJECTORIES = random_trajectories(4)


def storages(state):
    """Where each tensor's memory is, of those with more than one element: the optimizer counts its steps in scalars."""
    leaves: list[Any] = [leaf for leaf in pytree.tree_leaves(state) if isinstance(leaf, Tensor) and leaf.numel() > 1]
    return sorted(_local(leaf).data_ptr() for leaf in leaves)


def _local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def settle(worker):
    for thread in threading.enumerate():
        if thread.name == "reserve":
            thread.join()


def train(worker):
    plans, totals = plans_of(TRAJECTORIES, 1, 50)
    worker.prepare(plans[0], totals, *bundle_of(TRAJECTORIES))
    advantages = random_advantages(TRAJECTORIES)
    worker.update([advantages[index] for index in plans[0].samples], 1e-3, 0.1, MARK)


def test_the_first_save_finds_its_memory_reserved(tmp_path):
    alone(make_spec(), save_after_reserving, write_model(tmp_path / "weights"))


def save_after_reserving(worker, folder):
    worker.load(folder)
    worker.begin_stage("rl")
    settle(worker)
    reserved = sorted(buffer.data_ptr() for buffer in worker.saver._copy._buffers)
    train(worker)
    for _ in range(2):
        copy = worker.saver._copy.take(worker.saved_state())
        assert storages(copy) == reserved
    worker.begin_stage("rl")  # a new optimizer of the same shapes needs no more memory
    settle(worker)
    assert sorted(buffer.data_ptr() for buffer in worker.saver._copy._buffers) == reserved


def test_buffers_are_found_by_shape_and_type_and_others_are_not_kept():
    def task(worker):
        copy = HostCopy(torch.device("cpu"), worker.mesh)
        copy.reserve([torch.empty(2, 3), torch.empty(4), torch.empty(4, dtype=torch.int64), torch.empty(9)])
        known = {(tuple(buffer.shape), buffer.dtype): buffer.data_ptr() for buffer in copy._buffers}
        state: dict[str, Any] = {"a": torch.arange(4), "b": {"c": torch.ones(2, 3), "d": torch.full((4,), 2.0)}, "e": 7}
        taken = copy.take(state)
        assert taken["e"] == 7
        for tensor, expected in [(taken["a"], state["a"]), *((taken["b"][k], state["b"][k]) for k in "cd")]:
            torch.testing.assert_close(tensor, expected, rtol=0, atol=0)
            assert tensor.data_ptr() == known[tuple(tensor.shape), tensor.dtype]
        assert len(copy._buffers) == 3

    alone(make_spec(), task)


def test_a_copy_waits_for_memory_that_is_being_reserved(monkeypatch):
    def task(worker):
        copy, go_on, new = HostCopy(torch.device("cpu"), worker.mesh), threading.Event(), HostCopy._new
        monkeypatch.setattr(HostCopy, "_new", lambda self, shard: go_on.wait(10) and new(self, shard))
        reserving = threading.Thread(target=copy.reserve, args=([torch.empty(3)],))
        reserving.start()
        taken = []
        taking = threading.Thread(target=lambda: taken.append(copy.take({"a": torch.ones(3)})))
        taking.start()
        taking.join(0.05)
        assert taking.is_alive()
        go_on.set()
        taking.join(10)
        reserving.join(10)
        torch.testing.assert_close(taken[0]["a"], torch.ones(3), rtol=0, atol=0)
        assert len(copy._buffers) == 1

    alone(make_spec(), task)
