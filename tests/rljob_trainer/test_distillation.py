"""On-policy distillation: the teacher's signal, its gradient, and what is refused."""

import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, Qwen2Config

from rljob_api.v1alpha1.model import Tokenizer as TokenizerSpec
from rljob_trainer.advantage import ADVANTAGES, AdvantageBatch
from rljob_trainer.data.tokenizer import build_tokenizer
from rljob_trainer.errors import DataError, JobError
from rljob_trainer.journal import update_fingerprint
from rljob_trainer.local.preflight import check as preflight
from rljob_trainer.loop.batches import estimated
from rljob_trainer.progress import names
from rljob_trainer.rank.models.role import ModelRole
from rljob_trainer.rank.supported import check_teacher
from rljob_trainer.types import Taught
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.distillation_support import begin, log_probs_of, logits_of, models_of, student_and_teacher
from tests.rljob_trainer.rank_support import (
    MARK,
    VOCAB,
    alone,
    answer_of,
    answers_to_prompts,
    bundle_of,
    largest_difference,
    parameters,
    plans_of,
    random_trajectories,
    record_gradients,
    several_turns,
    write_model,
)
from tests.rljob_trainer.run_support import machine, trained, write_job

TRAJECTORIES = [
    *random_trajectories(4, seed=3, temperature=0.7),
    *answers_to_prompts(prompts=1, samples=3),
    several_turns([(3, 5), (6, 9), (12, 13)], tokens=15, seed=3),
]
COEFFICIENT = 0.5
PROMPT = np.arange(5)
EVERY_TOKEN = [answer_of(PROMPT, np.array([token])) for token in range(VOCAB)]


def distilling(ranks=1, algorithm=(), **blocks):
    settings = {"preset": "distillation", "teacher": {"path": "teacher", "coefficient": COEFFICIENT}, **dict(algorithm)}
    return make_spec(ranks, algorithm=settings, actor={"gradClip": 1e6}, rewards={}, **blocks)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return student_and_teacher(tmp_path_factory)


# ---------------------------------------------------------------------- the advantage


def test_the_advantage_is_the_teachers_signal_and_adds_up_with_rewards():
    """Worked by hand: rewards 1 and 0 of a group are 0.5 and -0.5 from their mean, of two tokens and one."""
    given = AdvantageBatch(
        np.array([1, 0], np.float32),
        np.zeros(2, np.int64),
        np.array([2, 1]),
        teacher=np.array([0.25, -1, 2], np.float32),
    )
    assert ADVANTAGES["distillation"](given).tolist() == [0.25, -1, 2]
    assert estimated(given, distilling()).tolist() == [0.25, -1, 2]
    assert estimated(given, distilling(algorithm={"advantage": "dr_grpo"})).tolist() == [0.75, -0.5, 1.5]
    with pytest.raises(JobError, match=r"a reverse KL is not finite"):
        AdvantageBatch(given.rewards, given.groups, given.lengths, teacher=np.array([0, np.nan, 0], np.float32))


# ---------------------------------------------------------------------- ranks


def gradient_of(worker, folders, trajectories, budget, weights=None):
    """Reverse KL by trajectory, and the gradient of a step on it, each trajectory's signal times its weight."""
    begin(worker, folders)
    plans, totals = plans_of(trajectories, worker.settings.world, budget)
    plan = plans[worker.settings.rank]
    reverse_kl = dict(zip(plan.samples, worker.prepare(plan, totals, *bundle_of(trajectories)).reverse_kl, strict=True))
    gradients = record_gradients(worker)
    given = [-COEFFICIENT * reverse_kl[i] * (1 if weights is None else weights[i]) for i in plan.samples]
    worker.update([each.astype(np.float32) for each in given], 1e-3, 0.0, MARK)
    return reverse_kl, gradients[0]


def test_the_signal_and_its_gradient_are_those_of_plain_torch_on_any_ranks(folders, two_ranks):
    student, teacher = models_of(folders)
    with torch.no_grad():
        expected = [(log_probs_of(student, each) - log_probs_of(teacher, each)) for each in TRAJECTORIES]
    tokens = sum(each.loss_tokens for each in TRAJECTORIES)
    for each, reverse_kl in zip(TRAJECTORIES, expected, strict=True):
        (COEFFICIENT * reverse_kl * log_probs_of(student, each)).sum().div(tokens).backward()
    theirs = {name: parameter.grad for name, parameter in student.named_parameters()}
    results = [alone(distilling(), gradient_of, folders, TRAJECTORIES, budget) for budget in (10_000, 40)]
    for budget in (10_000, 1):
        both = two_ranks.run(distilling(2), gradient_of, folders, TRAJECTORIES, budget)
        results += [(both[0][0] | both[1][0], gradient) for _, gradient in both]
    for reverse_kl, gradient in results:
        assert largest_difference(gradient, theirs) < 1e-4
        for index, each in reverse_kl.items():
            np.testing.assert_allclose(each, expected[index].numpy(), rtol=0, atol=2e-5)


@pytest.fixture(scope="module")
def gkd():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "vllm", None)  # TRL imports all of vLLM if it finds it; the trainers need none
        from trl.experimental.gkd import GKDTrainer

        yield GKDTrainer


@pytest.mark.filterwarnings("ignore")
def test_in_expectation_the_gradient_is_that_of_the_reverse_kl_over_the_vocabulary(folders, gkd):
    """KL(student || teacher) of the token after a prompt, which TRL's GKD with beta 1 computes from all logits."""
    student, teacher = models_of(folders)
    ours = logits_of(student, EVERY_TOKEN[0])[0]
    with torch.no_grad():
        theirs = logits_of(teacher, EVERY_TOKEN[0])[0]
    divergence = gkd.generalized_jsd_loss(ours[None, None], theirs[None, None], beta=1)
    (COEFFICIENT * divergence).backward()
    expected = {name: parameter.grad for name, parameter in student.named_parameters()}
    probabilities = ours.detach().softmax(-1).numpy()
    weights = VOCAB * probabilities  # the loss is a mean over the tokens
    reverse_kl, gradient = alone(distilling(), gradient_of, folders, EVERY_TOKEN, 10_000, weights)
    assert largest_difference(gradient, expected) < 1e-3
    mean = sum(probabilities[token] * float(each[0]) for token, each in reverse_kl.items())
    assert mean == pytest.approx(float(divergence.detach()), rel=1e-5)


def test_a_bypass_compares_the_teacher_with_the_engine(folders):
    """Whose log-probabilities are all -1 here."""
    spec = distilling(algorithm={"rolloutCorrection": {"bypassMode": True}})
    reverse_kl, _ = alone(spec, gradient_of, folders, TRAJECTORIES, 10_000)
    _, teacher = models_of(folders)
    with torch.no_grad():
        for index, each in reverse_kl.items():
            theirs = log_probs_of(teacher, TRAJECTORIES[index]).numpy()
            np.testing.assert_allclose(each, -1 - theirs, rtol=0, atol=2e-5)


def test_what_a_server_said_teaches_the_same(folders):
    """At temperature 1, as servers answer. The teacher of the ranks is not loaded."""
    at_one = random_trajectories(4, seed=3)
    _, teacher = models_of(folders)
    with torch.no_grad():
        given = [replace(each, taught=Taught(log_probs_of(teacher, each).numpy())) for each in at_one]
    served = distilling(algorithm={"teacher": {"server": {"url": "http://t", "model": "t"}, "coefficient": 0.5}})
    found = alone(served, gradient_of, (folders[0], None), given, 10_000)
    expected = alone(distilling(), gradient_of, folders, at_one, 10_000)
    assert largest_difference(found[1], expected[1]) < 1e-4
    for index, each in expected[0].items():
        np.testing.assert_allclose(found[0][index], each, rtol=0, atol=2e-5)


def test_the_teacher_stays_as_it_is_and_out_of_checkpoints(folders):
    saved, before, after, moved = alone(distilling(), roles_after_a_step, folders)
    assert saved == {"policy"}
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert moved


def roles_after_a_step(worker, folders):
    begin(worker, folders)
    policy, before = parameters(worker), teachers(worker.teacher)
    gradient_of(worker, folders, TRAJECTORIES, 40)
    moved = any(not torch.equal(each, policy[name]) for name, each in parameters(worker).items())
    return set(worker.saved_state()), before, teachers(worker.teacher), moved


def teachers(role: ModelRole):
    assert not any(each.requires_grad for each in role.network.parameters())
    return {name: each.detach().clone() for name, each in role.network.named_parameters()}


# ---------------------------------------------------------------------- what is refused, and the fingerprint


def tokenizer_of(kind, text="abc"):
    return build_tokenizer(TokenizerSpec(kind=kind), [text])


def write_teacher(folder, tokenizer, **sizes):
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, eos_token_id=1, pad_token_id=0, **sizes,
    )  # fmt: skip
    torch.manual_seed(2)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Path(folder)


def test_a_teacher_with_another_tokenizer_is_refused(tmp_path):
    folder = write_teacher(tmp_path, tokenizer_of("character", "bcd"))
    for own, problem in (("bcd", None), ("bc", None), ("abd", "token 'a' has id 6 in the policy's, and none")):
        vocabulary = tokenizer_of("character", own).get_vocab()
        if problem is None:
            check_teacher(distilling(), folder, vocabulary)
            continue
        with pytest.raises(DataError, match=rf"^spec\.algorithm\.teacher\.path: its tokenizer is not .*{problem}"):
            check_teacher(distilling(), folder, vocabulary)
    with pytest.raises(DataError, match=r"^spec\.algorithm\.teacher\.path: its embeddings have 9 rows"):
        check_teacher(distilling(), folder, tokenizer_of("byte").get_vocab())


def test_it_is_refused_before_anything_starts(tmp_path):
    student = write_teacher(tmp_path / "model", tokenizer_of("character", "abd"))
    teacher = write_teacher(tmp_path / "teacher", tokenizer_of("character", "bcd"))
    spec = distilling(model={"path": student.name}, rollout={"engine": "hf"})
    with pytest.raises(DataError, match=r"^spec\.algorithm\.teacher\.path: its tokenizer is not the policy's"):
        preflight(spec, tmp_path)
    (teacher / "tokenizer.json").unlink()
    (teacher / "tokenizer_config.json").unlink()
    with pytest.raises(DataError, match=r"^spec\.algorithm\.teacher\.path: teacher has no tokenizer"):
        preflight(spec, tmp_path)


def test_a_teacher_that_is_too_short_or_incomplete_is_refused(tmp_path, folders):
    folder = write_teacher(tmp_path / "short", tokenizer_of("byte"), max_position_embeddings=8)
    with pytest.raises(DataError, match=r"^spec\.algorithm\.teacher\.path: its context has 8 tokens"):
        check_teacher(distilling(), folder, {})
    broken = Path(write_model(tmp_path / "broken"))
    (broken / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(DataError, match=r"^spec\.algorithm\.teacher\.path: its weights cannot be loaded"):
        alone(distilling(), begin, (folders[0], str(broken)))


def test_the_files_of_the_teacher_are_part_of_the_fingerprint(tmp_path):
    found = []
    for seed in (0, 1, 1):
        write_model(tmp_path / "teacher", seed=seed)
        found.append(update_fingerprint(distilling(), tmp_path))
    assert found[0] != found[1] == found[2]


# ---------------------------------------------------------------------- runs

GUIDE = (Path(__file__).parents[2] / "docs/training.md").read_text()
SNIPPET = GUIDE.partition("\n## Distillation\n")[2].partition("```yaml\n")[2].partition("```")[0]


def job_of(folder):
    """The guide's job, for a student from scratch; its teacher has its tokenizer, and prefers some tokens by far."""
    write_teacher(folder / "teacher", tokenizer_of("byte"), initializer_range=0.3)
    model = {"fromScratch": {"layers": 1, "hiddenSize": 32, "heads": 1, "tokenizer": {"kind": "byte"}}}
    return write_job(folder, model=model, rewards=None, **yaml.safe_load(SNIPPET))


def run(place, path, folder, *overrides):
    ended = place.rljob("run", path, "--dir", folder, *(part for each in overrides for part in ("--set", each)))
    assert ended.code == 0, ended.out
    return trained(folder)


def test_the_guides_job_trains_without_rewards(tmp_path):
    with machine() as place:
        lines = run(place, job_of(tmp_path), tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line[names.REVERSE_KL] > 0 and line[names.ACTOR_GRAD_NORM] > 0 for line in lines)
    assert not any(name.startswith("reward/") for line in lines for name in line)


TASK = {"train": ["synthetic://reverse-text?maxLength=3&rows=4096"], "maxPromptTokens": 12, "promptsPerStep": 256}
SMALL = {"fromScratch": {"layers": 2, "hiddenSize": 64, "heads": 2}}


def write_taught(folder):
    """A student that reverses about 7 words of 10, and a teacher of its size that reverses nearly all."""
    taught = write_job(
        folder, "teacher", model=SMALL, data={**TASK, "promptsPerStep": 128}, algorithm={"preset": "sft"},
        actor={"learningRate": 0.003}, training={"steps": 200}, rollout=None, rewards=None,
    )  # fmt: skip
    return taught, write_job(
        folder, "student", model=SMALL, data=TASK, sft={"steps": 100, "learningRate": 0.003},
        algorithm={"preset": "distillation", "teacher": {"path": "teacher"}}, rollout={"samplesPerPrompt": 1},
        rewards={"functions": [{"name": "exact", "builtin": "exact_match"}]},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_student_becomes_as_its_teacher_and_continues_bit_for_bit(tmp_path):
    """It is trained on the teacher's log-probabilities alone; the rewards only show what it has learned."""
    teacher, student = write_taught(tmp_path)
    with machine() as place:
        run(place, teacher, tmp_path / "taught")
        exported = place.rljob("export", tmp_path / "taught", tmp_path / "teacher")
        assert exported.code == 0, exported.out
        whole = rl_lines(run(place, student, tmp_path / "whole", "training.steps=80"))
        run(place, student, tmp_path / "parts", "training.steps=4")
        parts = rl_lines(run(place, student, tmp_path / "parts", "training.steps=8"))
    shown = (names.REVERSE_KL, names.ACTOR_LOSS, names.ACTOR_GRAD_NORM)
    assert [[line[name] for name in shown] for line in whole[:8]] == [[line[name] for name in shown] for line in parts]
    before, after = whole[:5], whole[-5:]
    assert fmean(line[names.REVERSE_KL] for line in after) < fmean(line[names.REVERSE_KL] for line in before) / 5
    assert fmean(line["reward/exact"] for line in before) < 0.8
    assert fmean(line["reward/exact"] for line in after) > 0.9


def rl_lines(lines):
    return [line for line in lines if line["stage"] == "rl"]
