"""A packed forward pass gives what transformers gives for each sequence alone: every attention, every device."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.mamba import MambaConfig

from rljob_trainer.errors import JobError
from rljob_trainer.rank import attention as actor_attention
from rljob_trainer.rank.attention import packed_attention
from rljob_trainer.rank.forward import Policy, check_packing, score
from rljob_trainer.rank.loading import empty_model
from rljob_trainer.rank.packing import pack
from rljob_trainer.rank.sequence import TokenSequence
from tests.rljob_trainer.actor_support import CONFIGS, VOCAB, make_spec, random_sequences, write_model

PROMPTS = [sequence.token_ids[: sequence.prompt_tokens] for sequence in random_sequences(3)]
SEQUENCES = [
    *random_sequences(5),
    TokenSequence(np.array([3, 4], np.int32), 1),
    *(
        TokenSequence(np.concatenate([PROMPTS[prompt], np.arange(3, 3 + length, dtype=np.int32)]), len(PROMPTS[prompt]))
        for prompt, length in [(0, 4), (1, 9), (0, 1), (2, 2), (1, 3), (0, 4)]
    ),
]
"""Random ones, the shortest, and responses of several lengths to equal prompts, in no order."""
TEMPERATURE = 0.7
LAYOUT = pack([TokenSequence(np.array([3, 4, 5, 6], np.int32), 1)], torch.device("cpu")).layout
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: write_model(tmp_path_factory.mktemp("model"), name) for name in CONFIGS}


@pytest.fixture(params=["products", "kernel"])
def computed_by(request, monkeypatch):
    """What computes attention on a CPU: as for short sequences, or as for long ones."""
    if request.param == "kernel":
        monkeypatch.setattr(actor_attention, "_SHORT", 0)


def policy_of(folder, attention="auto", device="cpu", dtype=torch.float32):
    spec = make_spec(model={"path": folder, "attention": attention})
    model = empty_model(folder, spec.model)
    model.load_state_dict(AutoModelForCausalLM.from_pretrained(folder).state_dict())
    return Policy(model.to(device, dtype), packs=attention == "auto")


@torch.no_grad()
def one_by_one(folder, device="cpu"):
    """Log-probability and entropy of each response token, by transformers, one sequence at a time, in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").to(device)
    log_probs, entropies = [], []
    for sequence in SEQUENCES:
        ids = torch.from_numpy(sequence.token_ids).long().to(device)
        logits = model(ids[None]).logits[0, sequence.prompt_tokens - 1 : -1] / TEMPERATURE
        every = logits.log_softmax(-1)
        log_probs.append(every.gather(-1, ids[sequence.prompt_tokens :, None])[:, 0])
        entropies.append(torch.distributions.Categorical(logits=logits).entropy())
    return torch.cat(log_probs), torch.cat(entropies)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("attention", ["auto", "sdpa", "eager"])
@pytest.mark.usefixtures("computed_by")
@pytest.mark.parametrize("name", CONFIGS)
def test_packed_equals_one_by_one(folders, name, attention, device):
    policy = policy_of(folders[name], attention, device)
    ours = score(policy, pack(SEQUENCES, torch.device(device)), TEMPERATURE)
    for mine, theirs in zip(ours, one_by_one(folders[name], device), strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-5)


@pytest.mark.usefixtures("computed_by")
@pytest.mark.parametrize("name", CONFIGS)
def test_sequences_that_share_prompts_equal_one_by_one(folders, name):
    policy = policy_of(folders[name])
    assert policy.shares_prompts(torch.device("cpu"))
    assert not policy.shares_prompts(torch.device("cuda")), "also where its parameters are offloaded to the CPU"
    batch = pack(SEQUENCES, torch.device("cpu"), share=True)
    assert batch.input_ids.numel() < pack(SEQUENCES, torch.device("cpu")).input_ids.numel()
    for mine, theirs in zip(score(policy, batch, TEMPERATURE), one_by_one(folders[name]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-5)


@pytest.mark.usefixtures("computed_by")
@pytest.mark.parametrize("name", CONFIGS)
def test_shared_prompts_get_the_gradient_of_all_their_responses(folders, name):
    """Against transformers, one sequence at a time; every token has a weight of its own."""
    weights = torch.randn(
        sum(sequence.response_tokens for sequence in SEQUENCES), generator=torch.Generator().manual_seed(0)
    )
    policy = policy_of(folders[name])
    log_probs, _ = score(policy, pack(SEQUENCES, torch.device("cpu"), share=True), 1.0)
    (log_probs * weights).sum().backward()
    theirs = AutoModelForCausalLM.from_pretrained(folders[name], attn_implementation="eager").float()
    for sequence, part in zip(SEQUENCES, weights.split([each.response_tokens for each in SEQUENCES]), strict=True):
        ids = torch.from_numpy(sequence.token_ids).long()
        every = theirs(ids[None]).logits[0, sequence.prompt_tokens - 1 : -1].log_softmax(-1)
        (every.gather(-1, ids[sequence.prompt_tokens :, None])[:, 0] * part).sum().backward()
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
    log_probs, _ = score(policy, pack(SEQUENCES, torch.device(device)), TEMPERATURE)
    expected, _ = one_by_one(folders[name], device)
    assert (log_probs - expected).abs().mean() < 0.03
    assert expected.abs().mean() > 3


def test_a_window_changes_the_result(folders):
    """Else the comparisons above would not see one that is ignored."""
    policy = policy_of(folders["mistral with a window"])
    batch = pack(SEQUENCES, torch.device("cpu"))
    windowed, _ = score(policy, batch, 1.0)
    policy.model.config.sliding_window = None  # the layers read it here
    unlimited, _ = score(policy, batch, 1.0)
    assert (windowed - unlimited).abs().max() > 0.1


def test_no_sequences_make_one_idle_token_without_targets(folders):
    policy = policy_of(folders["qwen2"])
    log_probs, entropies = score(policy, pack([], torch.device("cpu")), 1.0)
    assert log_probs.shape == entropies.shape == (0,)
    log_probs.sum().backward()
    assert all(not parameter.grad.any() for parameter in policy.parameters())


def test_the_layout_of_the_docstring():
    sequences = [
        TokenSequence(np.array([5, 6, 7, 8], np.int32), 2),
        TokenSequence(np.array([5, 6, 9, 4, 3], np.int32), 2),
    ]
    batch = pack(sequences, torch.device("cpu"), share=True)
    assert batch.input_ids.tolist() == [[5, 6, 7, 9, 4]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 2, 3]]
    assert batch.predict_at.tolist() == [1, 2, 1, 3, 4]
    assert batch.targets.tolist() == [7, 8, 9, 4, 3]
    assert batch.layout.boundaries is None
    assert batch.layout.read is not None
    assert batch.layout.kept is not None
    assert batch.layout.read.tolist() == [0, 1, 2, 0, 0, 1, 3, 4]
    assert batch.layout.kept.tolist() == [0, 1, 2, 6, 7]
    assert (batch.layout.max_length, batch.response_lengths) == (4, (2, 3))
    whole = pack(sequences, torch.device("cpu"))
    assert whole.input_ids.tolist() == [[5, 6, 7, 5, 6, 9, 4]]
    assert whole.layout.boundaries is not None
    assert whole.layout.boundaries.tolist() == [0, 3, 7]
    assert whole.predict_at.tolist() == [1, 2, 4, 5, 6]


def test_a_prompt_is_shared_only_where_that_leaves_out_enough_rows():
    long = [TokenSequence(np.array([5, *response], np.int32), 1) for response in ([6, 7, 8, 9], [8, 7, 6, 5])]
    batch = pack(long, torch.device("cpu"), share=True)
    assert batch.layout.read is batch.layout.kept is None
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 5, 8, 7, 6]]


# ---------------------------------------------------------------------- what cannot be packed is refused


@pytest.mark.parametrize("attention", ["auto", "sdpa", "eager"])
def test_packing_is_proven_where_it_works(folders, attention):
    check_packing(policy_of(folders["qwen2"], attention), VOCAB, torch.device("cpu"), torch.float32)


def test_a_recurrent_model_is_refused(tmp_path):
    """A state space model reads a packed row as one sequence."""
    config = MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, state_size=8)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        model.get_output_embeddings().weight.normal_()  # else all log-probabilities are nearly equal
    with pytest.raises(JobError, match=r"^spec\.model\.path: its layers let packed sequences see each other"):
        check_packing(Policy(model, packs=False), VOCAB, torch.device("cpu"), torch.float32)


def test_attention_that_ignores_boundaries_is_refused(folders):
    """sdpa without position ids is what a model that drops them would do."""
    policy = policy_of(folders["qwen2"], "sdpa")
    base = policy.model.base_model
    base.register_forward_pre_hook(
        lambda _, args, kwargs: (args, kwargs | {"position_ids": torch.arange(kwargs["input_ids"].shape[1])[None]}),
        with_kwargs=True,
    )
    with pytest.raises(JobError, match="see each other"):
        check_packing(policy, VOCAB, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"layout": LAYOUT, "softcap": 50.0}, "has attention with softcap"),
        ({"layout": LAYOUT, "s_aux": torch.zeros(2)}, "has attention with s_aux"),
        ({}, "does not tell its layers about packing"),
    ],
)
def test_attention_that_auto_cannot_compute_is_refused(asked, message):
    heads = torch.zeros(1, 2, 3, 8)
    with pytest.raises(JobError, match=rf"^spec\.model\.attention: this architecture {message}"):
        packed_attention(torch.nn.Identity(), heads, heads, heads, None, **asked)
