"""Host memory of checkpoints: kept from save to save, no more of it than there is state."""

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


def train(worker):
    plans, totals = plans_of(TRAJECTORIES, 1, 50)
    worker.prepare(plans[0], totals, *bundle_of(TRAJECTORIES))
    advantages = random_advantages(TRAJECTORIES)
    worker.update([advantages[index] for index in plans[0].samples], 1e-3, 0.1, MARK)


def test_each_save_copies_into_the_same_memory(tmp_path):
    alone(make_spec(), save_again, write_model(tmp_path / "weights"))


def save_again(worker, folder):
    worker.load(folder)
    worker.begin_stage("rl")
    train(worker)
    first = storages(worker.saver._copy.take(worker.saved_state()))
    train(worker)
    assert storages(worker.saver._copy.take(worker.saved_state())) == first


def test_buffers_are_found_by_shape_and_type_and_others_are_not_kept():
    def task(worker):
        copy = HostCopy(torch.device("cpu"), worker.mesh)
        shapes = [torch.empty(2, 3), torch.empty(4), torch.empty(4, dtype=torch.int64), torch.empty(9)]
        copy.take({str(number): each for number, each in enumerate(shapes)})
        known = {(tuple(buffer.shape), buffer.dtype): buffer.data_ptr() for buffer in copy._buffers}
        state: dict[str, Any] = {"a": torch.arange(4), "b": {"c": torch.ones(2, 3), "d": torch.full((4,), 2.0)}, "e": 7}
        taken = copy.take(state)
        assert taken["e"] == 7
        for tensor, expected in [(taken["a"], state["a"]), *((taken["b"][k], state["b"][k]) for k in "cd")]:
            torch.testing.assert_close(tensor, expected, rtol=0, atol=0)
            assert tensor.data_ptr() == known[tuple(tensor.shape), tensor.dtype]
        assert len(copy._buffers) == 3

    alone(make_spec(), task)
