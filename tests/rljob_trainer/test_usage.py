"""MFU, memory peak and idle shares, against numbers that were worked out or published."""

import pytest
import torch

from rljob_trainer.loop.metrics import idle_metrics, usage_metrics
from rljob_trainer.progress import names
from rljob_trainer.rank.results import Usage
from rljob_trainer.rank.usage import model_flops, peak_flops
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.rank_support import MARK, alone, plans_of, random_trajectories, write_model


@pytest.mark.parametrize(("parameters", "seconds", "mfu"), [(494_032_768, 6.95, 0.134), (1_543_714_304, 13.1, 0.223)])
def test_the_utilization_is_the_one_that_was_published(parameters, seconds, mfu):
    """311,512 tokens a step on one H100. Source: the table of the peers' README, 2026-11-27."""
    capacity = seconds * peak_flops("NVIDIA H100 80GB HBM3")
    found = usage_metrics([Usage(model_flops(parameters, 311_512), capacity)])
    assert found == {names.ACTOR_MFU: pytest.approx(mfu, rel=0.01)}


@pytest.mark.parametrize(
    ("gpu", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L40S", 362), ("NVIDIA L4", 121), ("NVIDIA A10", 125), ("NVIDIA GeForce RTX 4090", 0),
    ],
)  # fmt: skip
def test_a_gpu_is_known_by_its_name(gpu, teraflops):
    assert peak_flops(gpu) == teraflops * 1e12


def test_ranks_add_up_and_the_fullest_counts():
    found = usage_metrics([Usage(1e12, 4e12, 3 << 30), Usage(2e12, 4e12, 5 << 30)])
    assert found == {names.ACTOR_MFU: 0.375, names.MEMORY_UPDATE: 5 << 30}
    assert usage_metrics([Usage(), Usage()]) == {}
    assert usage_metrics([Usage(1e12, 0.0, 7)]) == {names.MEMORY_UPDATE: 7}


def test_engines_and_ranks_wait_for_each_other():
    times = {
        names.TIME_STEP: 20.0, names.TIME_ROLLOUT: 10.0, names.TIME_REWARDS: 1.0, names.TIME_ADVANTAGE: 0.5,
        names.TIME_UPDATE: 6.5, names.TIME_SYNC: 1.0, names.TIME_CHECKPOINT: 1.0,
    }  # fmt: skip
    assert idle_metrics(times, 8.0) == {names.IDLE_ENGINES: pytest.approx(0.55), names.IDLE_RANKS: pytest.approx(0.6)}


def step(worker, folder):
    rows = random_trajectories(4)
    plans, totals = plans_of(rows, 1, 50)
    worker.load(folder)
    worker.begin_stage("sft")
    return worker.supervised_step(plans[0], totals, rows, 1e-3, MARK).usage


def test_a_cpu_has_no_such_figures(tmp_path):
    assert alone(make_spec(), step, write_model(tmp_path)) == Usage()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_an_update_measures_its_gpu(tmp_path):
    usage = alone(make_spec(), step, write_model(tmp_path), device="cuda")
    tokens = sum(len(each.token_ids) for each in random_trajectories(4))
    assert usage.flops == model_flops(21_856, tokens)
    assert usage.peak > 16 * 21_856
