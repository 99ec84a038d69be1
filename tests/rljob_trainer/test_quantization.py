"""FP8 in vLLM: each update quantises again, and the probe sees one that did not arrive. On a GPU as on a CPU."""

import importlib.util
from itertools import count

import numpy as np
import pytest
import torch
from torch.nn.functional import linear
from transformers import Qwen2ForCausalLM

from rljob_trainer.engines.vllm.quantization import check_gpu
from rljob_trainer.errors import JobError
from rljob_trainer.rollouts.weight_sync import tolerance_of
from rljob_trainer.types import Sampling
from rljob_trainer.weights.probe import DEFAULT_TOLERANCE
from rljob_trainer.weights.sender import WeightSender
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.rollout_support import (
    BUCKET_BYTES,
    RemoteEngine,
    answer,
    forward_log_probs,
    make_policy,
    random_prompts,
    requests,
    settings,
    write_model_dir,
)
from tests.rljob_trainer.test_lora_engines import LORA, adapted, matrices

SMALL = BUCKET_BYTES // 16
"""Bytes: q_proj, k_proj and v_proj, which vLLM fuses, travel in three buckets, and the third overwrites the first."""

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VERSIONS = count(1)
WANTED = requests(random_prompts(12, longest=90), Sampling(12), samples=2)
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


class InFp8(torch.nn.Module):
    """A linear layer whose two factors are values of FP8."""

    def __init__(self, layer):
        super().__init__()
        self.weight, self.bias = in_fp8(layer.weight), None if layer.bias is None else layer.bias.float()

    def forward(self, x):
        return linear(in_fp8(x), self.weight, self.bias).to(x.dtype)


def in_fp8(matrix):
    """Each row in the nearest values of E4M3 times a scale, with which its largest element is 448, the largest of E4M3.

    In float32.
    """
    scale = matrix.float().abs().amax(-1, keepdim=True).clamp_min(1e-12) / 448
    return (matrix.float() / scale).to(torch.float8_e4m3fn).float() * scale


def test_the_formula_in_these_tests_is_right():
    """By hand: the scale is 1, values of E4M3 above 32 are 4 apart, and 30 is between 28 and 32 by steps of 2."""
    assert in_fp8(torch.tensor([[448.0, 33.0, 35.0, 30.5, -1.01]])).tolist() == [[448, 32, 36, 30, -1]]
    assert in_fp8(torch.tensor([[896.0, 66.0], [4.48, 0.33]])).tolist() == [[896, 64], pytest.approx([4.48, 0.32])]


def quantized(policy):
    for block in policy.model.layers:
        for part in (block.self_attn, block.mlp):
            for name, layer in list(part.named_children()):
                if isinstance(layer, torch.nn.Linear):
                    setattr(part, name, InFp8(layer))
    return policy


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_model_dir(tmp_path_factory.mktemp("quantized"))


def policy_of(model_dir, seed) -> Qwen2ForCausalLM:
    return make_policy(model_dir, seed, torch.bfloat16).to(DEVICE)


def start(model_dir, adapter=None):
    """On a GPU with CUDA graphs, which read weights in their place."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    how = {"device": DEVICE, "gpu_memory_utilization": 0.2, "dtype": "bfloat16", "quantization": "fp8"}
    return RemoteEngine(settings("vllm", model_dir, adapter=adapter, **how))


@pytest.fixture(scope="module")
def engine(model_dir):
    started = start(model_dir)
    yield started
    started.close()


def send(engine, tensors, *, whole=True):
    """In buckets that end within layers, and are written again while these wait for the rest."""
    version = next(VERSIONS)
    engine.begin_update(version)

    def deliver(bucket):
        engine.load_bucket(bucket)
        return lambda: None

    WeightSender(DEVICE, "bfloat16", SMALL).send(tensors, version, deliver)
    if whole:
        engine.finish_update(version)
        engine.wake()


def layers_of(engine):
    """What its layers multiply with, by vLLM's names, in float32."""
    model = engine._engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.get_model()
    found = {name: each.detach().cpu().float() for name, each in model.named_parameters() if "layers" in name}
    for name in [name for name in found if name.endswith("_scale")]:
        scale, weight = found.pop(name), name.removesuffix("_scale")
        found[weight] = found[weight].t() * scale
    return found


def expected_layers(policy):
    """The same of transformers' model; what vLLM fuses lies one after the other."""
    named = {name: each.cpu() for name, each in policy.named_parameters() if "layers" in name}
    for fused, parts in FUSED.items():
        for first in [name for name in named if parts[0] in name]:
            named[first.replace(parts[0], fused)] = torch.cat([named.pop(first.replace(parts[0], p)) for p in parts])
    return {name: in_fp8(each) if "_proj.weight" in name else each.float() for name, each in named.items()}


def check_layers(engine, policy):
    """On a GPU a value between two of FP8 may fall to either side."""
    ours, theirs = expected_layers(policy), engine.call(layers_of)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        away = (theirs[name] - tensor).abs() > 1e-5 * tensor.abs().max()
        assert away.float().mean() <= (0.002 if DEVICE == "cuda" else 0), name
        assert torch.allclose(theirs[name], tensor, rtol=0.13, atol=1e-3), name


def mean_gap(policy, answers):
    gaps = [
        np.abs(answers[request.id, sample].log_probs - forward_log_probs(policy, request.token_ids, ids))
        for request in WANTED
        for sample in (0, 1)
        for ids in [answers[request.id, sample].token_ids]
    ]
    return float(np.concatenate(gaps).mean())


def test_each_update_quantises_the_new_weights(engine, model_dir):
    """Also after a sleep, which loses weights and scales."""
    for seed in range(2):
        send(engine, policy_of(model_dir, seed).named_parameters())
        check_layers(engine, policy_of(model_dir, seed))
        answers = answer(engine, WANTED)
        plain = mean_gap(policy_of(model_dir, seed), answers)
        assert plain > 1.2 * mean_gap(quantized(policy_of(model_dir, seed)), answers)
        assert mean_gap(policy_of(model_dir, 1 - seed), answers) > DEFAULT_TOLERANCE["fp8", "cuda"] > plain
        engine.sleep()


def test_an_update_that_was_cut_off_starts_again(engine, model_dir):
    """Within a layer: its first weights must not count twice."""
    send(engine, list(policy_of(model_dir, 2).named_parameters())[:9], whole=False)
    send(engine, policy_of(model_dir, 3).named_parameters())
    check_layers(engine, policy_of(model_dir, 3))


@pytest.mark.parametrize(
    "lacking", ["layers.1.self_attn.k_proj.weight", "layers.0.mlp.down_proj", "layers.0.self_attn.q_proj.bias"]
)
def test_weights_that_did_not_arrive_are_named(engine, model_dir, lacking):
    with pytest.raises(JobError, match=lacking.replace(".", r"\.")):
        send(engine, [each for each in policy_of(model_dir, 4).named_parameters() if lacking not in each[0]])


@pytest.mark.slow
def test_an_adapter_is_added_to_quantised_layers(model_dir):
    """The second version brings the adapter alone, after a sleep that loses it."""
    engine, base = start(model_dir, LORA), make_policy(model_dir, 0)
    versions = [matrices(base, seed) for seed in (1, 2)]
    merged = [adapted(base, each).to(DEVICE, torch.bfloat16) for each in versions]
    for number, tensors in enumerate(versions):
        send(engine, {**({} if number else dict(base.named_parameters())), **tensors}.items())
        answers = answer(engine, WANTED)
        assert mean_gap(merged[number], answers) < 0.15
        assert mean_gap(merged[1 - number], answers) > DEFAULT_TOLERANCE["fp8", "cuda"]
        engine.sleep()
    with pytest.raises(JobError, match="k_proj"):
        send(
            engine,
            [each for each in [*base.named_parameters(), *tensors.items()] if "1.self_attn.k_proj.w" not in each[0]],
        )
    engine.close()


def test_the_tolerance_follows():
    fp8 = {"engine": "vllm", "quantization": "fp8"}
    assert tolerance_of(make_spec(rollout={"engine": "vllm"}), "cuda") == 0.15
    assert tolerance_of(make_spec(rollout=fp8), "cuda") == 1.0
    assert tolerance_of(make_spec(rollout=fp8 | {"weightSync": {"probeTolerance": 0.3}}), "cuda") == 0.3


@pytest.mark.parametrize(
    ("capability", "multiplies"), [((8, 0), False), ((8, 6), False), ((8, 9), True), ((10, 0), True)]
)
def test_a_gpu_that_does_not_multiply_fp8_is_refused(capability, multiplies):
    if multiplies:
        check_gpu("NVIDIA H100", capability)
        return
    with pytest.raises(JobError, match=r"NVIDIA A100 .* 8\.[06], not 8\.9") as caught:
        check_gpu("NVIDIA A100", capability)
    assert caught.value.field == "spec.rollout.quantization"
