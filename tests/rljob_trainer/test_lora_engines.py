"""What engines make of a model and its adapter, against the merged weights in transformers."""

import copy
import importlib.util
from contextlib import nullcontext
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rljob_api.resolve import ResolvedLora
from rljob_trainer.engines.registry import create_engine
from rljob_trainer.engines.vllm.adapter import but_for_weights, renames, sleep_beside_others
from rljob_trainer.errors import JobError
from rljob_trainer.lora.files import PREFIX
from rljob_trainer.lora.layers import find_layers, merged
from rljob_trainer.types import Sampling
from rljob_trainer.weights.probe import WeightSyncError, compare, probe_prompts
from rljob_trainer.weights.sender import WeightSender
from tests.rljob_trainer.rollout_support import (
    BUCKET_BYTES,
    VOCAB,
    RemoteEngine,
    answer,
    finish,
    forward_log_probs,
    largest_gap,
    make_policy,
    random_prompts,
    requests,
    settings,
    write_model_dir,
)

LORA = ResolvedLora(rank=3, alpha=6, target_modules=["all-linear"])
CLOSE = 2e-2 if torch.cuda.is_available() else 3e-4
VERSIONS = count(1)


@pytest.fixture(scope="module", params=["hf", pytest.param("vllm", marks=pytest.mark.slow)])
def kind(request):
    if request.param == "vllm" and importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    return request.param


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_model_dir(tmp_path_factory.mktemp("engines"))


@pytest.fixture(scope="module")
def base(model_dir):
    return make_policy(model_dir, seed=0)


@pytest.fixture(scope="module")
def started(kind, model_dir):
    engine = (RemoteEngine if kind == "vllm" else create_engine)(settings(kind, model_dir, adapter=LORA))
    yield engine
    engine.close()


@pytest.fixture
def engine(started, base):
    """With the model, and the adapter of seed 1."""
    started.pause(keep=False)
    started.resume()
    send(started, {**dict(base.named_parameters()), **matrices(base, 1)})
    return started


def matrices(base, seed, size=0.2):
    """Of an adapter, by the names of peft's files."""
    draw = torch.Generator().manual_seed(seed)
    made = {}
    for name, layer in find_layers(base, ["all-linear"]).items():
        made[f"{PREFIX}{name}.lora_A.weight"] = size * torch.randn(3, layer.in_features, generator=draw)
        made[f"{PREFIX}{name}.lora_B.weight"] = size * torch.randn(layer.out_features, 3, generator=draw)
    return made


def adapted(base, tensors):
    """The model with the adapter in its weights."""
    policy = copy.deepcopy(base)
    with torch.no_grad():
        for name, layer in find_layers(policy, ["all-linear"]).items():
            down, up = (tensors[f"{PREFIX}{name}.lora_{each}.weight"] for each in "AB")
            layer.weight.copy_(merged(layer.weight, down, up, LORA.scale))
    return policy


def send(engine, tensors):
    """Returns the version."""
    version = next(VERSIONS)
    engine.begin_update(version)

    def deliver(bucket):
        engine.load_bucket(bucket)
        return lambda: None

    WeightSender("cpu", "float32", BUCKET_BYTES).send(tensors.items(), version, deliver)
    engine.finish_update(version)
    engine.wake()
    return version


def test_an_engine_computes_the_model_with_each_adapter_that_it_gets(engine, base, model_dir):
    """Also the same prompts again, whose keys a prefix cache could hold, and after a sleep."""
    wanted = requests(random_prompts(12, longest=90), Sampling(12), samples=2)
    first, second = matrices(base, 1), matrices(base, 2)
    assert largest_gap(adapted(base, first), wanted, answer(engine, wanted)) < CLOSE
    engine.sleep()
    send(engine, second)
    answers = answer(engine, wanted)
    assert largest_gap(adapted(base, second), wanted, answers) < CLOSE
    assert largest_gap(adapted(base, first), wanted, answers) > 0.1
    other = make_policy(model_dir, seed=5)
    send(engine, {**dict(other.named_parameters()), **first})
    assert largest_gap(adapted(other, first), wanted, answer(engine, wanted)) < CLOSE


@pytest.mark.parametrize("method", ["get_unstacked_mapper", "get_rename_mapper"], ids=["vLLM 0.26", "vLLM 0.32"])
def test_adapters_go_by_the_renames_of_either_vllm(method):
    mapper = type("Mapper", (), {method: lambda _: "without what fuses layers"})()
    assert renames(mapper) == "without what fuses layers"
    assert renames(None) is None


def test_memory_of_the_model_neither_sleeps_nor_wakes():
    allocator = SimpleNamespace(
        pointer_to_data={place: SimpleNamespace(tag=tag) for place, tag in ((1, "weights"), (2, "kv_cache"))}
    )
    seen = []
    but_for_weights(allocator, lambda: seen.append([*allocator.pointer_to_data]))()
    assert (seen, {*allocator.pointer_to_data}) == ([[2]], {1, 2})


@pytest.mark.parametrize(("said", "ends"), [("Memory usage increased after sleeping.", False), ("other", True)])
def test_a_worker_sleeps_though_another_process_takes_memory_meanwhile(said, ends):
    def sleep(level):
        assert level != 2, said

    worker = SimpleNamespace(sleep=sleep)
    sleep_beside_others(worker)
    with pytest.raises(AssertionError, match=said) if ends else nullcontext():
        worker.sleep(level=2)


def test_kept_samples_go_on_with_the_new_adapter(engine, base):
    wanted = requests(random_prompts(8), Sampling(20), samples=2)
    for request in wanted:
        engine.submit(request)
    old = engine.policy_version
    answers = {(each.request_id, each.sample): each for _ in range(6) for each in engine.step()}
    engine.pause(keep=True)
    new = send(engine, matrices(base, 2))
    engine.resume()
    answers |= finish(engine)
    policies = {old: adapted(base, matrices(base, 1)), new: adapted(base, matrices(base, 2))}
    assert {version for each in answers.values() for version in each.versions} == set(policies)
    for request in wanted:
        for each in (answers[request.id, sample] for sample in (0, 1)):
            for version, policy in policies.items():
                own = each.versions == version
                ours = forward_log_probs(policy, request.token_ids, each.token_ids)
                assert not own.any() or np.abs(each.log_probs - ours)[own].max() < CLOSE


@pytest.mark.parametrize(
    ("lacking", "named"),
    [("lora_", r"lora_A\.weight"), ("layers.1.mlp.up_proj.lora_B", r"mlp\.up_proj"), ("", "embed")],
)
def test_an_update_that_lacks_a_part_is_refused(engine, base, model_dir, kind, lacking, named):
    """The whole adapter, one matrix, and the model of an engine that never had it."""
    if not lacking:
        if kind == "vllm":
            pytest.skip("another engine takes 20 s to start")
        engine = create_engine(settings(kind, model_dir, adapter=LORA))
    tensors = matrices(base, 1) | (dict(base.named_parameters()) if lacking else {})
    with pytest.raises(JobError, match=f"{named}|of the adapter"):
        send(engine, {name: each for name, each in tensors.items() if not lacking or lacking not in name})


@pytest.mark.parametrize("size", [0.3, 3e-3], ids=["one that matters", "one after its first steps"])
def test_the_probe_catches_an_engine_that_runs_without_the_adapter(engine, base, size):
    """Even where it changes the log-probabilities by less than engine and trainer may differ."""
    tensors = matrices(base, 3, size)
    policy, tolerance = adapted(base, tensors), 1.0
    prompts = probe_prompts(VOCAB, 24)

    def probe():
        found = answer(engine, requests(prompts, Sampling(2)))
        answers = [found[str(i), 0] for i in range(len(prompts))]
        pairs = list(zip(prompts, (each.token_ids for each in answers), strict=True))
        ours, plain = ([forward_log_probs(model, *pair) for pair in pairs] for model in (policy, base))
        return compare(answers, ours, version=1, tolerance=tolerance, base_log_probs=plain)

    send(engine, tensors)
    assert (probe().moved or 0) > 0
    send(engine, {name: torch.zeros_like(each) for name, each in tensors.items()})
    with pytest.raises(WeightSyncError, match="without its adapter"):
        probe()
