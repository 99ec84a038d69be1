"""The fused output head: by hand, against log_softmax of transformers' logits, finite differences, and its memory."""

import math
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, CohereConfig, Gemma2Config, GraniteConfig

from rljob_trainer.losses.output_head import LogitTransform, function, score_logits, score_tokens
from rljob_trainer.rank.forward import Policy, score, score_only
from rljob_trainer.rank.packing import pack
from tests.rljob_trainer.rank_support import CONFIGS, SIZES, random_trajectories, several_turns

INF = math.inf
TRANSFORMS = [LogitTransform(), LogitTransform(scale=0.5), LogitTransform(scale=2.0, cap=3.0)]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    """Chunks of two rows, for a vocabulary of less than 50."""
    monkeypatch.setattr(function, "_ELEMENTS", {"cpu": 100})
    monkeypatch.setattr(function, "_ROW_BLOCK", 2)


def inputs(tokens=5, hidden=4, vocabulary=7, dtype=torch.float64):
    made = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, dtype=dtype, generator=made)

    return SimpleNamespace(
        hidden=draw(tokens, hidden).requires_grad_(),
        weight=draw(vocabulary, hidden).requires_grad_(),
        bias=draw(vocabulary).requires_grad_(),
        targets=torch.randint(vocabulary, (tokens,), generator=made),
        temperature=draw(tokens).abs().to(torch.float64 if dtype == torch.float64 else torch.float32) + 0.5,
        upstream=[draw(tokens).double() for _ in range(2)],
    )


def plain(given, transform):
    """The definitions, written out, in float64."""
    logits = given.hidden.double() @ given.weight.double().t() + given.bias.double()
    logits = logits * transform.scale
    logits = logits if transform.cap is None else transform.cap * torch.tanh(logits / transform.cap)
    log_p = torch.log_softmax(logits / given.temperature[:, None], -1)
    return log_p.gather(-1, given.targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def ours(given, transform):
    return score_tokens(
        given.hidden, given.weight, given.bias, given.targets, given.temperature, transform, entropy_gradient=True
    )


def test_entropies_by_hand():
    # Uniform over 4: log 4. Certain: 0. Odds 3:1, that is 3/4 and 1/4: log 4 - 3/4 log 3 = 0.562335.
    logits = torch.tensor([[5.0, 5, 5, 5], [1e4, 0, 0, 0], [math.log(3), 0, -INF, -INF]])
    log_probs, entropies = score_logits(logits, torch.tensor([2, 0, 1]), 1.0)
    assert entropies.tolist() == pytest.approx([math.log(4), 0, 0.562335], abs=1e-6)
    assert log_probs.tolist() == pytest.approx([-math.log(4), 0, -math.log(4)], abs=1e-6)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_gradients_agree_with_finite_differences(transform):
    given = inputs()

    def scored(hidden, weight, bias):
        return ours(SimpleNamespace(**vars(given) | {"hidden": hidden, "weight": weight, "bias": bias}), transform)

    assert torch.autograd.gradcheck(scored, (given.hidden, given.weight, given.bias))


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_values_and_gradients_are_those_of_log_softmax(transform, dtype, tolerance):
    """Hidden states that keep a gradient of 1 apart; in bfloat16 within its rounding."""
    given = inputs(tokens=33, vocabulary=41, dtype=dtype)
    found, expected = ours(given, transform), plain(given, transform)
    assert found[0].dtype == (dtype if dtype == torch.float64 else torch.float32)
    names = (given.hidden, given.weight, given.bias)
    gradients = [
        torch.autograd.grad(
            values, names, [each.to(value.dtype) for each, value in zip(given.upstream, values, strict=True)]
        )
        for values in (found, expected)
    ]
    for one, other in zip([*found, *gradients[0]], [*expected, *gradients[1]], strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=tolerance, atol=tolerance)


def test_impossible_tokens_have_no_gradient():
    weight = torch.eye(3, requires_grad=True)
    bias = torch.tensor([0.0, 0.0, -INF])
    hidden = torch.tensor([[1.0, 0.0, 0.0]], requires_grad=True)
    log_probs, entropies = score_tokens(
        hidden, weight, bias, torch.tensor([0]), 1.0, LogitTransform(), entropy_gradient=True
    )
    (log_probs + entropies).sum().backward()
    assert weight.grad is not None
    assert hidden.grad is not None
    assert weight.grad[2].tolist() == [0, 0, 0]
    assert hidden.grad.isfinite().all()


def test_entropies_without_gradient():
    given = inputs()
    _, entropies = score_tokens(given.hidden, given.weight, None, given.targets, 1.0, LogitTransform())
    assert not entropies.requires_grad


def test_no_tokens_still_reach_the_weight():
    """A rank without samples takes part in the collectives of the weight's gradient."""
    given = inputs(tokens=0)
    ours(given, LogitTransform())[0].sum().backward()
    assert given.weight.grad.tolist() == torch.zeros(7, 4).tolist()
    assert given.hidden.grad.shape == (0, 4)


def test_the_gradient_of_a_bfloat16_weight_is_summed_over_chunks_in_float32():
    """256 equal addends of 1/512 on each chunk: in bfloat16 the sum stops growing at 1/2."""
    tokens = 2048
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    hidden = torch.full((tokens, 1), 1.0, dtype=torch.bfloat16)
    log_probs, _ = score_tokens(hidden, weight, None, torch.zeros(tokens, dtype=torch.int64), 1.0, LogitTransform())
    log_probs.sum().backward()  # each token: 1 - p = 1/2
    assert weight.grad is not None
    assert weight.grad.flatten().tolist() == [tokens / 2, -tokens / 2]


class Largest(TorchDispatchMode):
    """The most elements of a tensor that an operation returned."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for each in found if isinstance(found, tuple | list) else [found]:
            if isinstance(each, torch.Tensor):
                self.elements = max(self.elements, each.numel())
        return found


def test_no_tensor_of_all_tokens_and_the_vocabulary_ever_exists():
    tokens, vocabulary = 300, 50
    given = inputs(tokens=tokens, vocabulary=vocabulary, dtype=torch.float32)
    kept = []

    def keep(tensor):
        kept.append(tensor.numel())
        return tensor

    with Largest() as largest, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        log_probs, entropies = ours(given, TRANSFORMS[2])
        (log_probs + entropies).sum().backward()
    assert max(kept) == given.hidden.numel()
    assert largest.elements == given.hidden.numel()  # 1200, and 15000 logits


# ---------------------------------------------------------------------- models

MODELS = {
    **{name: CONFIGS[name] for name in ("qwen2", "tied")},
    "gemma2": Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=2.0),
    "cohere": CohereConfig(**SIZES | {"tie_word_embeddings": True}, logit_scale=0.25),
    "granite": GraniteConfig(**SIZES, logits_scaling=4.0),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_policy_scores_what_the_models_own_logits_say(name):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(MODELS[name], attn_implementation="eager")
    for parameter in model.parameters():
        parameter.data.mul_(8)  # far from uniform
    policy = Policy(model).eval()
    policy.apart = True
    device = torch.device("cpu")
    trajectories = [*random_trajectories(3), several_turns([(3, 5), (7, 9)], tokens=9, temperatures=[0.7, 1.3])]
    batch = pack(trajectories, device, apart=True)
    assert isinstance(batch.temperature, torch.Tensor)
    log_probs, entropies = score(policy, batch, entropy_gradient=True)
    (log_probs + entropies).sum().backward()
    found = {key: parameter.grad.clone() for key, parameter in model.named_parameters()}
    model.zero_grad()
    logits = model(batch.input_ids).logits.flatten(0, 1)[batch.predict_at] / batch.temperature[:, None]
    log_p = torch.log_softmax(logits.float(), -1)
    expected = log_p.gather(-1, batch.targets[:, None])[:, 0]
    expected_entropies = -(log_p.exp() * log_p).sum(-1)
    torch.testing.assert_close(log_probs, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropies, expected_entropies, rtol=1e-5, atol=1e-5)
    (expected + expected_entropies).sum().backward()
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(found[key], parameter.grad, rtol=1e-3, atol=1e-5 * float(parameter.grad.abs().max()))
    whole = score_only(policy, pack(trajectories[:1], device, apart=True), whole=True)
    torch.testing.assert_close(whole, expected[: len(whole)], rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------- Triton


def test_triton_kernels_compute_the_same_in_their_interpreter():
    """Triton reads its variable when it is imported, so in a process of its own."""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    found = subprocess.run(
        [sys.executable, "-m", "bench.update.kernels"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == ["18", "cases", "agree"]
