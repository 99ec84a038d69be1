"""A packed forward pass gives what transformers gives for each trajectory alone: every attention, every device."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rljob_trainer.errors import JobError
from rljob_trainer.losses.output_head import function
from rljob_trainer.rank import attention
from rljob_trainer.rank.attention import CannotPack, packed_attention
from rljob_trainer.rank.forward import Policy, score
from rljob_trainer.rank.loading import empty_model
from rljob_trainer.rank.packable import choose_rows
from rljob_trainer.rank.packing import pack
from rljob_trainer.types import supervised
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.rank_support import CONFIGS, answer_of, random_trajectories, several_turns, write_model

PROMPTS = [each.token_ids[: each.prompt_tokens] for each in random_trajectories(3)]
TRAJECTORIES = [
    *random_trajectories(5, temperature=0.7),
    answer_of(np.array([3]), np.array([4])),
    *(
        answer_of(PROMPTS[prompt], np.arange(3, 3 + length), temperature=0.7)
        for prompt, length in [(0, 4), (1, 9), (0, 1), (2, 2), (1, 3), (0, 4)]
    ),
    several_turns([(4, 7), (9, 10), (13, 16)], tokens=16, temperatures=[0.5, 1.0, 1.5]),
    several_turns([(4, 5), (8, 9)], tokens=12, temperatures=[0.7, 0.7]),
]
"""Random ones, the shortest, answers of several lengths to equal prompts in no order, and three and two turns with tool
results between them, the last behind the answers; of several temperatures."""
LAYOUT = pack([supervised(np.array([3, 4, 5, 6], np.int32), [slice(1, 4)])], torch.device("cpu")).layout
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: write_model(tmp_path_factory.mktemp("model"), name) for name in CONFIGS}


@pytest.fixture(params=["products", "kernel"])
def computed_by(request, monkeypatch):
    """What computes attention on a CPU: as for short sequences, or as for long ones."""
    if request.param == "kernel":
        monkeypatch.setattr(attention, "_SHORT", 0)


def policy_of(folder, kind="auto", device="cpu", dtype=torch.float32):
    spec = make_spec(model={"path": folder, "attention": kind})
    model = empty_model(folder, spec.model)
    model.load_state_dict(AutoModelForCausalLM.from_pretrained(folder).state_dict())
    return Policy(model.to(device, dtype))


def targets_of(model, trajectory, device="cpu"):
    """Logits, at their temperatures, that predict each token in the loss, and its log-probability; by transformers."""
    ids = torch.from_numpy(trajectory.token_ids).long().to(device)
    at = torch.from_numpy(np.flatnonzero(trajectory.in_loss)).to(device)
    heat = torch.from_numpy(trajectory.temperatures()).to(device)
    logits = model(ids[None]).logits[0][at - 1] / heat[at, None]
    return logits, logits.log_softmax(-1).gather(-1, ids[at, None])[:, 0]


@torch.no_grad()
def one_by_one(folder, device="cpu", trajectories=TRAJECTORIES):
    """Log-probability and entropy of each token in the loss, one trajectory at a time, in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").to(device)
    found = [targets_of(model, trajectory, device) for trajectory in trajectories]
    entropies = [torch.distributions.Categorical(logits=logits).entropy() for logits, _ in found]
    return torch.cat([log_probs for _, log_probs in found]), torch.cat(entropies)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("attention", ["auto", "sdpa", "eager"])
@pytest.mark.usefixtures("computed_by")
@pytest.mark.parametrize("name", CONFIGS)
def test_packed_equals_one_by_one(folders, name, attention, device):
    policy = policy_of(folders[name], attention, device)
    ours = score(policy, pack(TRAJECTORIES, torch.device(device)))
    for mine, theirs in zip(ours, one_by_one(folders[name], device), strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-5)


@pytest.mark.usefixtures("computed_by")
@pytest.mark.parametrize("name", CONFIGS)
def test_trajectories_that_share_prompts_equal_one_by_one(folders, name):
    policy = policy_of(folders[name])
    assert policy.shares_prompts(torch.device("cpu"))
    assert not policy.shares_prompts(torch.device("cuda")), "also where its parameters are offloaded to the CPU"
    batch = pack(TRAJECTORIES, torch.device("cpu"), share=True)
    assert batch.input_ids.numel() < pack(TRAJECTORIES, torch.device("cpu")).input_ids.numel()
    for mine, theirs in zip(score(policy, batch), one_by_one(folders[name]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-5)


def test_one_temperature_is_a_number(folders):
    """It takes no memory, and computes the same."""
    equal = [*random_trajectories(5, temperature=0.7), several_turns([(2, 4), (6, 7)], 8, temperatures=[0.7, 0.7])]
    batch = pack(equal, torch.device("cpu"))
    assert batch.temperature == pytest.approx(0.7)
    log_probs, _ = score(policy_of(folders["qwen2"]), batch)
    torch.testing.assert_close(log_probs, one_by_one(folders["qwen2"], trajectories=equal)[0], rtol=0, atol=2e-5)


def test_logits_that_are_computed_in_parts_have_their_own_temperatures(folders, monkeypatch):
    policy, batch = policy_of(folders["qwen2"]), pack(TRAJECTORIES * 4, torch.device("cpu"))
    monkeypatch.setattr(function, "_ELEMENTS", {"cpu": 0})  # 128 rows at a time
    assert batch.targets.numel() > 2 * 128
    log_probs, _ = score(policy, batch)
    torch.testing.assert_close(log_probs, one_by_one(folders["qwen2"])[0].repeat(4), rtol=0, atol=2e-5)


@pytest.mark.usefixtures("computed_by")
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_gradient_is_that_of_one_trajectory_at_a_time(folders, name, share):
    """Against transformers, with shared prompts and without; every token has a weight of its own."""
    lengths = [each.loss_tokens for each in TRAJECTORIES]
    weights = torch.randn(sum(lengths), generator=torch.Generator().manual_seed(0))
    policy = policy_of(folders[name])
    log_probs, _ = score(policy, pack(TRAJECTORIES, torch.device("cpu"), share=share))
    (log_probs * weights).sum().backward()
    theirs = AutoModelForCausalLM.from_pretrained(folders[name], attn_implementation="eager").float()
    for trajectory, part in zip(TRAJECTORIES, weights.split(lengths), strict=True):
        (targets_of(theirs, trajectory)[1] * part).sum().backward()
    expected = dict(theirs.named_parameters())
    for parameter_name, parameter in policy.model.named_parameters():
        wanted = expected[parameter_name].grad
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()) + 1e-7)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_of_transformers_gets_each_sequence_whole(folders, attention):
    assert not policy_of(folders["qwen2"], attention).shares_prompts(torch.device("cpu"))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["qwen2", "mistral with a window"])
def test_in_bfloat16_only_rounding_differs(folders, name, device):
    policy = policy_of(folders[name], device=device, dtype=torch.bfloat16)
    log_probs, _ = score(policy, pack(TRAJECTORIES, torch.device(device)))
    expected, _ = one_by_one(folders[name], device)
    assert (log_probs - expected).abs().mean() < 0.03
    assert expected.abs().mean() > 3


def test_a_window_changes_the_result(folders):
    """Else the comparisons above would not see one that is ignored."""
    policy = policy_of(folders["mistral with a window"])
    batch = pack(TRAJECTORIES, torch.device("cpu"))
    windowed, _ = score(policy, batch)
    policy.model.config.sliding_window = None  # the layers read it here
    unlimited, _ = score(policy, batch)
    assert (windowed - unlimited).abs().max() > 0.1


def test_no_trajectories_make_one_idle_token_without_targets(folders):
    policy = policy_of(folders["qwen2"])
    log_probs, entropies = score(policy, pack([], torch.device("cpu")))
    assert log_probs.shape == entropies.shape == (0,)
    log_probs.sum().backward()
    assert all(not parameter.grad.any() for parameter in policy.parameters())


def test_the_layout_of_the_docstring():
    a = supervised(np.array([5, 6, 7, 8], np.int32), [slice(2, 4)])
    b = supervised(np.array([5, 6, 9, 4, 3, 1], np.int32), [slice(2, 3), slice(4, 5)])
    batch = pack([a, b], torch.device("cpu"), share=True)
    assert batch.input_ids.tolist() == [[5, 6, 7, 9, 4]]
    assert batch.position_ids is not None
    assert batch.position_ids.tolist() == [[0, 1, 2, 2, 3]]
    assert batch.layout is not None
    assert batch.predict_at.tolist() == [1, 2, 1, 4]
    assert batch.targets.tolist() == [7, 8, 9, 3]
    assert batch.layout.boundaries is None
    assert batch.layout.read is not None
    assert batch.layout.kept is not None
    assert batch.layout.read.tolist() == [0, 1, 2, 0, 0, 1, 3, 4]
    assert batch.layout.kept.tolist() == [0, 1, 2, 6, 7]
    assert (batch.layout.max_length, batch.loss_tokens, batch.temperature) == (4, (2, 2), 1.0)
    whole = pack([a, b], torch.device("cpu"))
    assert whole.input_ids.tolist() == [[5, 6, 7, 5, 6, 9, 4]]
    assert whole.layout is not None
    assert whole.layout.boundaries is not None
    assert whole.layout.boundaries.tolist() == [0, 3, 7]
    assert whole.predict_at.tolist() == [1, 2, 4, 6]


def test_a_trajectory_without_a_token_in_the_loss_takes_two_rows():
    nothing = supervised(np.array([5, 6, 7], np.int32), [])
    batch = pack([nothing, answer_of(np.array([5]), np.array([6, 7]))], torch.device("cpu"))
    assert batch.input_ids.tolist() == [[5, 6, 5, 6]]
    assert (batch.loss_tokens, batch.targets.tolist()) == ((0, 2), [6, 7])


def test_a_prompt_is_shared_only_where_that_leaves_out_enough_rows():
    long = [answer_of(np.array([5]), np.array(answer)) for answer in ([6, 7, 8, 9], [8, 7, 6, 5])]
    batch = pack(long, torch.device("cpu"), share=True)
    assert batch.layout is not None
    assert batch.layout.read is batch.layout.kept is None
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 5, 8, 7, 6]]


# ---------------------------------------------------------------------- what cannot be packed gets rows of its own


def decided(policy, longest=64):
    choose_rows(policy, longest, torch.device("cpu"), torch.float32)
    return policy.apart


@pytest.mark.parametrize("attention", ["auto", "sdpa", "eager"])
@pytest.mark.parametrize("name", CONFIGS)
def test_packing_is_proven_where_it_works(folders, name, attention):
    policy = policy_of(folders[name], attention)
    used = policy.model.config._attn_implementation
    assert not decided(policy)
    assert policy.model.config._attn_implementation == used


def test_attention_that_ignores_boundaries_packs_nothing(folders):
    """sdpa without position ids is what a model that drops them would do."""
    policy = policy_of(folders["qwen2"], "sdpa")
    policy.model.base_model.register_forward_pre_hook(
        lambda _, args, kwargs: (args, {name: each for name, each in kwargs.items() if name != "position_ids"}),
        with_kwargs=True,
    )
    assert decided(policy)
    log_probs, _ = score(policy, policy.pack(TRAJECTORIES, torch.device("cpu")))
    torch.testing.assert_close(log_probs, one_by_one(folders["qwen2"])[0], rtol=0, atol=2e-5)


def test_layers_that_draw_random_numbers_are_refused(folders):
    policy = policy_of(folders["qwen2"])
    policy.model.lm_head.register_forward_hook(lambda _, __, out: out + torch.randn_like(out))
    with pytest.raises(JobError, match=r"^spec\.model\.path: "):
        decided(policy)


def test_a_model_that_changes_its_heads_logits_is_refused(folders):
    policy = policy_of(folders["qwen2"])
    policy.model.register_forward_hook(lambda _, __, out: out.__class__(logits=out.logits * 0.5))
    with pytest.raises(JobError, match=r"^spec\.model\.path: .*logits"):
        decided(policy)


def test_trajectories_apart_are_padded_rows():
    a = supervised(np.array([5, 6, 7, 8], np.int32), [slice(2, 4)])
    b = supervised(np.array([5, 9, 4], np.int32), [slice(1, 2)])
    batch = pack([a, b], torch.device("cpu"), apart=True)
    assert batch.input_ids.tolist() == [[5, 6, 7], [5, 0, 0]]
    assert (batch.position_ids, batch.layout) == (None, None)
    assert (batch.predict_at.tolist(), batch.targets.tolist()) == ([1, 2, 3], [7, 8, 9])


@pytest.mark.parametrize(
    "asked", [{"layout": LAYOUT, "softcap": 50.0}, {"layout": LAYOUT, "s_aux": torch.zeros(2)}, {}]
)
def test_attention_that_auto_cannot_compute_is_not_packed(asked):
    heads = torch.zeros(1, 2, 3, 8)
    with pytest.raises(CannotPack):
        packed_attention(torch.nn.Identity(), heads, heads, heads, None, **asked)
