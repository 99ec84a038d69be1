"""Losses, gradients and advantages against TRL's trainers: its own `compute_loss` and scoring, run on a tiny model.

Both sides get the same weights, tokens and log-probabilities. Ours are flat tokens and autograd through
transformers' plain forward pass; TRL's are padded rows and its fused head.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rljob_api.resolve import ResolvedAlgorithm
from rljob_api.v1alpha1.algorithm import Aggregation
from rljob_trainer.advantage import ADVANTAGES, AdvantageBatch
from rljob_trainer.losses.aggregation import token_weights
from rljob_trainer.losses.kl import kl_estimate
from rljob_trainer.losses.output_head import LogitTransform, score_tokens
from rljob_trainer.losses.policy import LOSSES, LossTerms, PolicyBatch
from rljob_trainer.losses.totals import BatchTotals
from tests.rljob_trainer.checkpoint_support import make_spec

VOCABULARY, PROMPT_TOKENS, MAX_RESPONSE_TOKENS = 12, 2, 8
LENGTHS = [8, 3, 5, 1, 8, 2]


@pytest.fixture(scope="module")
def trl() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "vllm", None)  # TRL imports all of vLLM where it finds it; the trainers need none
        import trl

        yield trl


def tiny_model(seed: int) -> nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": False}
    model: nn.Module = Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, initializer_range=0.5))
    return model


def letters() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", *"abcdefghij"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def trainer_of(
    trl: ModuleType, algorithm: str, folder: Path, rewards: Callable[..., list[float]] | None = None, **settings: Any
) -> Any:
    """A GRPOTrainer or RLOOTrainer with a tiny model of its own, and another as its reference where it has one."""
    from datasets import Dataset

    tiny_model(seed=0).save_pretrained(folder)  # type: ignore[operator]
    arguments = getattr(trl, f"{algorithm}Config")(
        output_dir=str(folder), per_device_train_batch_size=len(LENGTHS), num_generations=3,
        max_completion_length=MAX_RESPONSE_TOKENS, report_to=[], use_cpu=True, bf16=False, **settings,
    )  # fmt: skip
    trainer = getattr(trl, f"{algorithm}Trainer")(
        model=str(folder), reward_funcs=rewards or (lambda completions, **_: [0.0] * len(completions)), args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["a b"] * 6}), processing_class=letters(),
    )  # fmt: skip
    if trainer.ref_model is not None:
        trainer.ref_model.load_state_dict(tiny_model(seed=1).state_dict())
    trainer.model.eval()  # the same formulas without gradient accumulation
    return trainer


def algorithm(k3: float = 0.0, **fields: object) -> ResolvedAlgorithm:
    """With k3 as the coefficient of a KL term in the loss, of TRL's estimator."""
    fields["kl"] = {"placement": "loss" if k3 else "none", "estimator": "k3", "coefficient": k3}
    return make_spec(algorithm=fields).algorithm


@dataclass(frozen=True)
class Rollout:
    """Prompts [n, P], responses [n, R] padded on the right, lengths [n], and per response token what a loss needs."""

    prompts: Tensor
    responses: Tensor
    lengths: Tensor

    @property
    def mask(self) -> Tensor:
        return (torch.arange(self.responses.shape[1]) < self.lengths[:, None]).long()

    def flat(self, padded: Tensor) -> Tensor:
        return padded[self.mask.bool()]

    def padded(self, flat: Tensor) -> Tensor:
        return torch.zeros(self.mask.shape).masked_scatter(self.mask.bool(), flat)

    def log_probs_and_logits(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Of the response tokens, flat."""
        tokens = torch.cat([self.prompts, self.responses], dim=1)
        mask = torch.cat([torch.ones_like(self.prompts), self.mask], dim=1)
        logits = model(input_ids=tokens, attention_mask=mask).logits[:, PROMPT_TOKENS - 1 : -1]
        log_probs = logits.log_softmax(-1).gather(-1, self.responses[..., None])[..., 0]
        return self.flat(log_probs), self.flat(logits)


def random_rollout() -> Rollout:
    generator = torch.Generator().manual_seed(2)
    shape = (len(LENGTHS), PROMPT_TOKENS + MAX_RESPONSE_TOKENS)
    tokens = torch.randint(2, VOCABULARY, shape, generator=generator)
    lengths = torch.tensor(LENGTHS)
    rollout = Rollout(tokens[:, :PROMPT_TOKENS], tokens[:, PROMPT_TOKENS:], lengths)
    return Rollout(rollout.prompts, rollout.responses * rollout.mask, lengths)


def assert_same_gradients(ours: nn.Module, theirs: nn.Module) -> None:
    reference = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-6, name
        torch.testing.assert_close(parameter.grad, reference[name].grad, rtol=1e-4, atol=1e-6, msg=name)


@dataclass(frozen=True)
class Case:
    """Settings of TRL's trainer, and ours that must give the same loss."""

    theirs: dict[str, Any]
    ours: ResolvedAlgorithm
    aggregation: Aggregation


CASES = {
    "grpo": Case(
        {"loss_type": "grpo", "epsilon": 0.2, "beta": 0.0}, algorithm(loss="clip", clipRatio=0.2), "sequence_mean"
    ),
    "grpo with k3": Case(
        {"loss_type": "grpo", "epsilon": 0.2, "beta": 0.3, "use_bias_correction_kl": False},
        algorithm(loss="clip", clipRatio=0.2, k3=0.3),
        "sequence_mean",
    ),
    "dr_grpo": Case(
        {"loss_type": "dr_grpo", "epsilon": 0.1, "beta": 0.0}, algorithm(loss="clip", clipRatio=0.1), "dr_grpo"
    ),
    "dapo": Case(
        {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28, "beta": 0.0},
        algorithm(loss="decoupled_clip", clipRatioLow=0.2, clipRatioHigh=0.28),
        "token_mean",
    ),
    "bnpo with dual clip, k3 and entropy": Case(
        {
            "loss_type": "bnpo",
            "epsilon": 0.2,
            "delta": 1.5,
            "beta": 0.05,
            "entropy_coef": 0.1,
            "use_bias_correction_kl": False,
        },
        algorithm(loss="dual_clip", clipRatio=0.2, clipRatioC=1.5, entropyCoefficient=0.1, k3=0.05),
        "token_mean",
    ),
}


def entropy_of(logits: Tensor) -> Tensor:
    """Of logits [T, V], as those of an output head that changes nothing."""
    vocabulary, targets = logits.shape[1], torch.zeros(len(logits), dtype=torch.int64)
    return score_tokens(logits, torch.eye(vocabulary), None, targets, 1.0, LogitTransform(), entropy_gradient=True)[1]


def our_loss(
    model: nn.Module, rollout: Rollout, old: Tensor, reference: Tensor, advantages: Tensor, case: Case
) -> tuple[Tensor, LossTerms]:
    log_probs, logits = rollout.log_probs_and_logits(model)
    settings, lengths = case.ours, rollout.lengths
    terms = LOSSES[settings.loss](PolicyBatch(log_probs, advantages, old), settings)
    per_token = terms.per_token - settings.entropy_coefficient * entropy_of(logits)
    if settings.kl.placement == "loss":
        per_token = per_token + settings.kl.coefficient * kl_estimate(settings.kl.estimator, log_probs, reference)
    totals = BatchTotals(tokens=int(lengths.sum()), trajectories=len(lengths))
    return (token_weights(case.aggregation, lengths, totals, MAX_RESPONSE_TOKENS) * per_token).sum(), terms


@pytest.mark.parametrize("name", CASES)
def test_loss_gradients_and_clip_fraction_are_those_of_grpo_trainer(name: str, trl: ModuleType, tmp_path: Path):
    case, rollout, ours = CASES[name], random_rollout(), tiny_model(seed=0)
    theirs = trainer_of(trl, "GRPO", tmp_path, **case.theirs)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        current, _ = rollout.log_probs_and_logits(ours)
        old = current + 0.4 * torch.randn(current.shape, generator=generator)  # far enough that many tokens clip
        reference, _ = rollout.log_probs_and_logits(tiny_model(seed=1))
    advantages = torch.randn(len(LENGTHS), generator=generator)
    expected = theirs.compute_loss(
        theirs.model,
        {
            "prompt_ids": rollout.prompts,
            "prompt_mask": torch.ones_like(rollout.prompts),
            "completion_ids": rollout.responses,
            "completion_mask": rollout.mask,
            "advantages": advantages,
            "old_per_token_logps": rollout.padded(old),
            "ref_per_token_logps": rollout.padded(reference),
            "num_items_in_batch": rollout.mask.sum(),
        },
    )
    per_token_advantages = advantages.repeat_interleave(rollout.lengths)
    loss, terms = our_loss(ours, rollout, old, reference, per_token_advantages, case)
    expected.backward()
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    assert_same_gradients(ours, theirs.model)
    if case.ours.loss != "dual_clip":  # TRL does not count the tokens that delta bounds
        (fraction,) = theirs._metrics["eval"]["clip_ratio/region_mean"]
        assert 0.1 < fraction < 0.9
        assert terms.clipped.float().mean().item() == pytest.approx(fraction)


def score(trainer: Any) -> tuple[Rollout, Tensor]:
    """TRL generates responses to two prompts and scores them: the rollout and its advantages [n]."""
    torch.manual_seed(4)
    scored = trainer._generate_and_score_completions([{"prompt": "a b"}] * 3 + [{"prompt": "c d"}] * 3)
    lengths = scored["completion_mask"].sum(1)
    return Rollout(scored["prompt_ids"], scored["completion_ids"], lengths), scored["advantages"]


def our_advantages(name: Any, rollout: Rollout, rewards: list[float], penalties: Tensor | None = None) -> Tensor:
    """[n]: the advantage of each response's first token, which all of its tokens share."""
    batch = AdvantageBatch(
        np.array(rewards, np.float32),
        np.array([0, 0, 0, 1, 1, 1]),
        rollout.lengths.numpy(),
        None if penalties is None else penalties.numpy(),
    )
    starts = rollout.lengths.cumsum(0) - rollout.lengths
    return torch.from_numpy(ADVANTAGES[name](batch))[starts]


@pytest.mark.parametrize(("name", "scaling"), [("grpo", "group"), ("dr_grpo", "none")])
def test_group_advantages_are_those_of_grpo_trainer(name: str, scaling: str, trl: ModuleType, tmp_path: Path):
    rewards = [5000.0, 1000.0, 0.0, 700.0, 700.0, 100.0]  # so large that TRL's epsilon of 1e-4 does not show
    trainer = trainer_of(trl, "GRPO", tmp_path, lambda completions, **_: rewards, beta=0.0, scale_rewards=scaling)
    rollout, expected = score(trainer)
    torch.testing.assert_close(our_advantages(name, rollout, rewards), expected, rtol=1e-5, atol=1e-5)


def test_rloo_advantages_with_the_kl_in_the_reward_are_those_of_rloo_trainer(trl: ModuleType, tmp_path: Path):
    rewards = [1.0, 0.0, 0.5, 0.0, 0.0, 0.25]
    trainer = trainer_of(trl, "RLOO", tmp_path, lambda completions, **_: rewards, beta=0.2)
    rollout, expected = score(trainer)
    with torch.no_grad():
        policy, _ = rollout.log_probs_and_logits(tiny_model(seed=0))
        reference, _ = rollout.log_probs_and_logits(tiny_model(seed=1))
    penalties = 0.2 * kl_estimate("k1", policy, reference)
    assert len(set(rollout.lengths.tolist())) > 1
    assert penalties.abs().max() > 0.1
    advantages = our_advantages("rloo", rollout, rewards, penalties)
    torch.testing.assert_close(advantages, expected, rtol=1e-4, atol=1e-5)


def test_on_policy_the_rloo_gradient_is_that_of_rloo_trainer(trl: ModuleType, tmp_path: Path):
    # TRL's ratio is of whole responses. On policy both gradients are the mean over responses of A_i grad log pi(i),
    # for us the dr_grpo aggregation times its constant length.
    rollout, ours, theirs = random_rollout(), tiny_model(seed=0), trainer_of(trl, "RLOO", tmp_path)
    advantages = torch.randn(len(LENGTHS), generator=torch.Generator().manual_seed(5))
    old = rollout.log_probs_and_logits(ours)[0].detach()
    theirs.compute_loss(
        theirs.model,
        {
            "prompt_ids": rollout.prompts,
            "prompt_mask": torch.ones_like(rollout.prompts),
            "completion_ids": rollout.responses,
            "completion_mask": rollout.mask,
            "advantages": advantages,
            "old_logps": rollout.padded(old).sum(1),
        },
    ).backward()
    case = Case({}, algorithm(loss="clip"), "dr_grpo")
    loss, _ = our_loss(ours, rollout, old, old, advantages.repeat_interleave(rollout.lengths), case)
    (loss * MAX_RESPONSE_TOKENS).backward()
    assert_same_gradients(ours, theirs.model)


def test_entropy_and_its_gradient_are_those_of_trl(trl: ModuleType):
    from trl.trainer.utils import entropy_from_logits as entropy_of_trl

    ours = (3 * torch.randn(300, 40, generator=torch.Generator().manual_seed(6))).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    upstream = torch.randn(300, generator=torch.Generator().manual_seed(7))
    entropy, expected = entropy_of(ours), entropy_of_trl(theirs)
    entropy.backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close(entropy, expected)
    torch.testing.assert_close(ours.grad, theirs.grad)
