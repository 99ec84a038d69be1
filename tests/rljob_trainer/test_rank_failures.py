"""Memory that does not suffice and ranks that are gone end with the field and the remedy, not with a traceback."""

import os

import numpy as np
import pytest
import torch

from rljob_trainer.compute.out_of_memory import LOADING, STEPPING, explained
from rljob_trainer.engines.registry import ENGINES
from rljob_trainer.errors import InfrastructureError, JobError
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.rank_support import MARK, Ranks, plans_of, random_trajectories, write_model

TOO_MUCH = 1 << 50


def test_host_memory_of_torch_names_the_field():
    with (
        pytest.raises(JobError, match=r"^spec\.actor\.tokensPerMicroBatch: the host ran out of memory; lower it"),
        explained(STEPPING),
    ):
        torch.empty(TOO_MUCH, dtype=torch.uint8)


def test_host_memory_of_python_names_the_field():
    with pytest.raises(JobError, match=r"^spec\.model\.path: the host ran out of memory"), explained(LOADING):
        np.empty(TOO_MUCH, np.uint8)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    ("remedies", "field"), [(STEPPING, "spec.actor.tokensPerMicroBatch"), (LOADING, "spec.actor.fsdp.offload")]
)
def test_gpu_memory_names_the_field(remedies, field):
    with pytest.raises(JobError) as found, explained(remedies):
        torch.empty(TOO_MUCH, dtype=torch.uint8, device="cuda")
    assert found.value.field == field
    assert "the GPU ran out of memory" in found.value.message


def test_the_gpu_allocators_error_is_told_from_others():
    """The class that a CUDA allocation raises, on a machine without CUDA."""
    with (
        pytest.raises(JobError, match=r"^spec\.actor\.fsdp\.offload: .* set it to all"),
        explained(LOADING),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize(
    "text",
    [
        "Worker failed with error 'CUDA out of memory. Tried to allocate 2.00 GiB.', please check the stack trace",
        "CUDA Error: out of memory at csrc/cumem_allocator.cpp:62",
    ],
)
def test_vllms_own_words_for_it_are_known(text):
    with (
        pytest.raises(JobError, match=r"^spec\.rollout\.gpuMemoryUtilization: .*maxResponseTokens"),
        explained(ENGINES["vllm"].remedies),
    ):
        raise RuntimeError(text)


def test_other_errors_stay_what_they_are():
    with pytest.raises(RuntimeError, match="must match"), explained(STEPPING):
        torch.zeros(2) + torch.zeros(3)


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
