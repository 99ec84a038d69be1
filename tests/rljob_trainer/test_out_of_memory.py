"""Memory that does not suffice ends with the phase, what held the memory, the field that helps, and a value of it."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rljob_trainer.engines.engine import EngineSettings
from rljob_trainer.engines.hf.engine import HfEngine
from rljob_trainer.engines.memory import in_phase
from rljob_trainer.errors import JobError
from rljob_trainer.memory.engine_advice import engine_remedy, start_error
from rljob_trainer.memory.explained import explained
from rljob_trainer.memory.held import GIB, Held
from rljob_trainer.memory.rank_advice import HOST, REST, rank_error, rank_remedy
from rljob_trainer.rank.memory import give_back_for_engines
from rljob_trainer.types import Sampling
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
from tests.rljob_trainer.rollout_support import make_policy, random_prompts, requests, settings, sync, write_model_dir

TORCH = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 1.50 GiB is free."
    " Including non-PyTorch memory, this process has 70.50 GiB memory in use. Of the allocated memory 61.00 GiB is"
    " allocated by PyTorch, and 9.00 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is"
    " large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
"""As torch 2.13 writes it."""

STATE = {"weights": 6 * GIB, "gradients": 6 * GIB, "optimizer": 12 * GIB}
TRAINING = Held.of(TORCH, STATE, REST)
VLLM = EngineSettings("vllm", "model", 1024, device="cuda")


def test_the_sizes_of_torchs_error_are_told_apart():
    assert (
        Held(
            wanted=2 * GIB,
            total=80 * GIB,
            free=GIB * 3 // 2,
            unused=9 * GIB,
            others=8 * GIB,
            parts={REST: 37 * GIB, **STATE},
        )
        == TRAINING
    )
    assert next(iter(TRAINING.parts)) == REST
    assert str(TRAINING) == (
        "2.0 GiB more were needed, and 1.5 of 80.0 GiB were free; held, in GiB: activations and temporary tensors 37.0,"
        " optimizer 12.0, weights 6.0, gradients 6.0, reserved but unused 9.0, other processes 8.0"
    )


@pytest.mark.parametrize(
    ("text", "known"),
    [("CUDA Error: out of memory at csrc/cumem_allocator.cpp:62", {}), ("CUDA out of memory: cudaMalloc failed", {})],
)
def test_an_error_without_sizes_says_nothing_of_them(text, known):
    assert not str(Held.of(text, known, REST))


def rank_says(phase, held=TRAINING, **blocks):
    remedy = rank_remedy(phase, held, make_spec(**blocks))
    return f"{remedy.field.removeprefix('spec.')}: {remedy.advice}"


LONG = {"train": ["rows.jsonl"], "maxPromptTokens": 8192, "maxResponseTokens": 8192}
FULL = replace(TRAINING, parts={"weights": 30 * GIB, "optimizer": 30 * GIB, "gradients": 10 * GIB})


@pytest.mark.parametrize(
    ("phase", "held", "blocks", "said"),
    [
        ("update", TRAINING, {}, "actor.tokensPerMicroBatch: lower it from 16384 to 8192"),
        ("update", Held(), {}, "actor.tokensPerMicroBatch: lower it from 16384 to 8192"),
        (
            "update", TRAINING, {"actor": {"recompute": "none"}},
            "actor.recompute: set it to layer",
        ),
        (
            "update", TRAINING, {"data": LONG},
            "actor.fsdp.offload: set it to optimizer, or spread the model over more GPUs",
        ),
        ("update", FULL, {}, "actor.fsdp.offload: set it to optimizer, or spread the model over more GPUs"),
        (
            "update", FULL, {"actor": {"fsdp": {"offload": "all"}}},
            "cluster.gpusPerNode: spread the model over more GPUs: raise it, or cluster.nodes",
        ),
        ("start", TRAINING, {}, "actor.fsdp.offload: set it to optimizer, or spread the model over more GPUs"),
        # 80 - 24 of the rank - 1 of the buckets - 2 wanted - 2 of contexts: 51 of 80 GiB
        (
            "weight sync", replace(TRAINING, parts=STATE), {"rollout": {"gpuMemoryUtilization": 0.7}},
            "rollout.gpuMemoryUtilization: lower it from 0.7 to 0.6",
        ),
        # five contexts more: 46 of 80 GiB
        (
            "weight sync", replace(TRAINING, parts=STATE),
            {"rollout": {"enginesPerGpu": 6, "gpuMemoryUtilization": 0.7}},
            "rollout.gpuMemoryUtilization: lower it from 0.7 to 0.55",
        ),
        ("weight sync", replace(TRAINING, parts=STATE), {}, "rollout.weightSync.bucketMib: lower it from 512 to 64"),
        (
            "weight sync", TRAINING, {"rollout": {"weightSync": {"bucketMib": 32}}},
            "actor.fsdp.offload: set it to optimizer, or spread the model over more GPUs",
        ),
    ],
)  # fmt: skip
def test_a_rank_names_the_field_that_helps_most(phase, held, blocks, said):
    assert rank_says(phase, held, **blocks) == said


def test_a_rank_says_phase_memory_and_remedy_in_one_sentence():
    assert str(rank_error("update", TRAINING, make_spec())) == (
        f"spec.actor.tokensPerMicroBatch: the GPU ran out of memory in the update ({TRAINING}): lower it from 16384 to"
        " 8192"
    )


# The rank holds 28 of 80 GiB as the KV cache wakes; 1 GiB is the engine's beside its share.
WAKING = Held(total=80 * GIB, free=40 * GIB, parts={"weights": GIB}, others=28 * GIB)


@pytest.mark.parametrize(
    ("phase", "held", "changes", "field", "advice"),
    [
        ("weight sync", WAKING, {"gpu_memory_utilization": 0.8}, "gpuMemoryUtilization", "lower it from 0.8 to 0.6"),
        ("rollout", replace(TRAINING, parts={}), {}, "gpuMemoryUtilization", "lower it from 0.5 to 0.45"),
        ("rollout", replace(TRAINING, wanted=9 * GIB), {}, "gpuMemoryUtilization", "lower it from 0.5 to 0.35"),
        ("rollout", TRAINING, {"gpu_memory_utilization": 0.05}, "maxNumSeqs", "lower it from 256 to 128"),
        ("rollout", TRAINING, {"kind": "hf"}, "maxNumSeqs", "lower it from 256 to 128"),
        # each of two engines lacks 8.5 of 80 GiB
        (
            "rollout", replace(TRAINING, wanted=9 * GIB), {"engines_per_gpu": 2, "gpu_memory_utilization": 0.8},
            "gpuMemoryUtilization", "lower it from 0.8 to 0.55",
        ),
        ("rollout", Held(), {}, "gpuMemoryUtilization", "lower it, or lower data.maxResponseTokens or"),
    ],
)  # fmt: skip
def test_an_engine_names_the_field_that_helps_most(phase, held, changes, field, advice):
    remedy = engine_remedy(phase, held, replace(VLLM, **changes))
    assert remedy.field == f"spec.rollout.{field}"
    assert remedy.advice.startswith(advice)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (
            "Free memory on device cuda:0 (31.66/79.11 GiB) on startup is less than desired GPU memory utilization",
            "lower it from 0.5 to 0.4",
        ),
        (
            "(12.0 GiB KV cache is needed, which is larger than the available KV cache memory (3.5 GiB).",
            "raise it from 0.5 to 0.65",
        ),
        ("No available memory for the cache blocks. Try increasing `gpu_memory_utilization`", "raise it from 0.5 to"),
    ],
)
def test_what_vllm_measures_at_its_start_becomes_a_value(text, advice):
    error = start_error(text, 80 * GIB, VLLM)
    assert error.field == "spec.rollout.gpuMemoryUtilization"
    assert f": {advice}" in error.message


# ---------------------------------------------------------------------- the code that runs


def update_without_memory(worker, folder):
    """The second update: the optimizer has its state. The model's last layer raises what a CUDA allocation raises."""
    trajectories = random_trajectories(4)
    plans, totals = plans_of(trajectories, 1, 50)
    advantages = random_advantages(trajectories)
    worker.load(folder)
    worker.begin_stage("rl")
    worker.prepare(plans[0], totals, *bundle_of(trajectories))
    worker.update(advantages, 1e-3, 0.0, MARK)

    def allocate(*_):
        raise torch.OutOfMemoryError(TORCH)

    worker.policy.module.model.model.layers[-1].register_forward_hook(allocate)
    worker.prepare(plans[0], totals, *bundle_of(trajectories))
    worker.update(advantages, 1e-3, 0.0, MARK)


def test_an_update_without_memory_counts_what_the_rank_holds(tmp_path):
    spec = make_spec(algorithm={"kl": {"placement": "none"}})
    with pytest.raises(JobError, match=r"in the update \(2\.0 GiB more were needed") as found:
        alone(spec, update_without_memory, write_model(tmp_path))
    assert found.value.field == "spec.actor.tokensPerMicroBatch"
    weights = 4 * 21_856 / GIB  # 97 x 32 twice, 2 layers of 7,808 parameters, the last norm's 32
    assert f"weights {weights:.2g}" in found.value.message
    assert f"optimizer {2 * weights:.2g}" in found.value.message


def test_a_rollout_without_memory_names_the_engines_field(tmp_path):
    folder = write_model_dir(tmp_path)
    engine = HfEngine(settings("hf", folder))
    sync(engine, make_policy(folder, 0), 0)
    engine.submit(requests(random_prompts(1), Sampling(4))[0])

    def allocate(*_):
        raise torch.OutOfMemoryError(TORCH)

    engine._model.lm_head.register_forward_hook(allocate)
    with pytest.raises(JobError, match=r"^spec\.rollout\.maxNumSeqs: .* in the rollout of the engine .*weights "):
        engine.step()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpus_own_error_is_read():
    with (
        pytest.raises(JobError, match=r"GiB more were needed, and [\d.]+ of [\d.]+ GiB were free"),
        in_phase("rollout", VLLM, dict),
    ):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")


@pytest.mark.parametrize("make", [lambda: torch.empty(1 << 50, dtype=torch.uint8), lambda: np.empty(1 << 50, np.uint8)])
def test_host_memory_names_the_field(make):
    with (
        pytest.raises(JobError, match=r"^spec\.model\.path: the host ran out of memory"),
        explained(JobError, HOST["start"]),
    ):
        make()


def test_other_errors_stay_what_they_are():
    with pytest.raises(RuntimeError, match="must match"), explained(JobError, HOST["update"]):
        torch.zeros(2) + torch.zeros(3)


def test_a_rank_gives_memory_back_before_its_engines_wake(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "rljob_trainer.rank.rank.give_back_for_engines", lambda device, *_: seen.append(f"{device} asked")
    )
    monkeypatch.setattr("rljob_trainer.rank.rank.send", lambda *_: seen.append("engines wake"))

    def send(worker, folder):
        worker.load(folder)
        worker.send_weights([], 0, [], 1, 1.0, True)

    alone(make_spec(), send, write_model(tmp_path))
    assert seen == ["cpu asked", "engines wake"]


@pytest.mark.parametrize(("rollout", "engines", "free", "given"), [
    ({}, None, 46, []),  # half of 80 GiB, 1 of buckets, 4 of margin
    ({}, None, 44, ["back"]),
    ({}, 10, 16, []),
    ({}, 10, 14, ["back"]),
    ({"engine": "hf"}, None, 79, ["back"]),
])  # fmt: skip
def test_a_rank_keeps_what_its_engines_do_not_need(monkeypatch, rollout, engines, free, given):
    seen = []
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (free * GIB, 80 * GIB))
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: SimpleNamespace(total_memory=80 * GIB))
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: seen.append("back"))
    give_back_for_engines(torch.device("cuda"), make_spec(rollout=rollout), engines and engines * GIB)
    assert seen == given
