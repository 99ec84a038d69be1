"""The reverse KL over the teacher's likeliest tokens: by hand, against TRL, and as a step of the ranks."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rljob_trainer.losses.distillation import top_k_reverse_kl
from rljob_trainer.losses.output_head import LogitTransform, function, likeliest_tokens, score_candidates
from rljob_trainer.rank.shard import ShardSample, within
from rljob_trainer.types import Taught
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.distillation_support import begin, logits_of, models_of, student_and_teacher
from tests.rljob_trainer.rank_support import (
    MARK,
    alone,
    bundle_of,
    largest_difference,
    plans_of,
    random_trajectories,
    record_gradients,
    several_turns,
)

INF = float("inf")
COEFFICIENT, TOP_K = 0.5, 4
TRAJECTORIES = [
    *random_trajectories(4, seed=3, temperature=0.7),
    several_turns([(3, 5), (6, 9), (12, 13)], tokens=15, seed=3),
]


def divergence_of(logits, teacher_logits, top_k):
    """From all logits [T, V]."""
    teacher, ids = teacher_logits.log_softmax(-1).topk(top_k)
    return top_k_reverse_kl(logits.log_softmax(-1).gather(-1, ids), teacher)


def random_logits(tokens=6, vocabulary=11):
    draw = torch.Generator().manual_seed(0)
    ours, theirs = torch.randn(2, tokens, vocabulary, generator=draw, dtype=torch.float64) * 2
    return ours.requires_grad_(), theirs


# ---------------------------------------------------------------------- the divergence


def test_value_and_gradient_by_hand():
    """p = .4 .3 .1 .1 .1 and q = 1/2 1/4 1/8 1/16 1/16, of which two are compared, and .3 of the rest with 1/4:
    D = .4 log .8 + .3 log 1.2 + .3 log 1.2 = 0.0201353, and dD/dz is p_u (log .8 - D) of the first token, .4 times
    -0.2432789, and p_u (log 1.2 - D), p_u times 0.1621863, of the others.
    """
    p, q = (torch.tensor([each]) for each in ([0.4, 0.3, 0.1, 0.1, 0.1], [0.5, 0.25, 0.125, 0.0625, 0.0625]))
    logits = p.log().requires_grad_()
    found = divergence_of(logits, q.log(), 2)
    assert found.tolist() == pytest.approx([0.0201353], abs=1e-6)
    found.sum().backward()
    assert logits.grad is not None
    expected = [-0.0973116, 0.0486559, 0.0162186, 0.0162186, 0.0162186]
    assert logits.grad[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_a_token_that_does_not_count_belongs_to_the_rest():
    p, q = (torch.tensor([each]).log() for each in ([0.4, 0.3, 0.1, 0.1, 0.1], [0.5, 0.25, 0.125, 0.0625, 0.0625]))
    with_none = top_k_reverse_kl(p[:, [0, 1, 2]], torch.cat([q[:, :2], torch.tensor([[-INF]])], dim=1))
    torch.testing.assert_close(with_none, top_k_reverse_kl(p[:, :2], q[:, :2]))


def test_certain_and_impossible_tokens_have_a_finite_gradient():
    logits = torch.tensor([[0.0, -INF, -200.0], [-200.0, 0.0, 0.0]], requires_grad=True)
    found = divergence_of(logits, torch.tensor([[0.0, -1.0, -200.0], [0.0, -200.0, -200.0]]), 2)
    found.sum().backward()
    assert found.isfinite().all()
    assert found[1] > 10, "what the teacher finds impossible, as a whole"
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.fixture(scope="module")
def trl():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "vllm", None)  # TRL imports all of vLLM if it finds it; the trainers need none
        from trl.experimental.gkd import GKDTrainer
        from trl.experimental.sdft import loss_utils

        yield SimpleNamespace(gkd=GKDTrainer, sdft=loss_utils)


@pytest.mark.filterwarnings("ignore")
def test_of_the_whole_vocabulary_it_is_gkds(trl):
    logits, theirs = random_logits()
    ours = divergence_of(logits, theirs, 11)
    expected = trl.gkd.generalized_jsd_loss(logits[:, None], theirs[:, None], beta=1, reduction="none").sum((1, 2))
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)
    weights = torch.arange(1.0, 7, dtype=torch.float64)
    gradients = [torch.autograd.grad((weights * each).sum(), logits)[0] for each in (ours, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("top_k", [1, 3, 10])
def test_of_some_tokens_it_is_trls_divergence_with_a_bucket_for_the_tail(trl, top_k):
    logits, theirs = random_logits()
    values, ids = theirs.log_softmax(-1).topk(top_k)
    ours = top_k_reverse_kl(logits.log_softmax(-1).gather(-1, ids), values)
    both = [trl.sdft.add_tail_bucket(each) for each in (logits.log_softmax(-1).gather(-1, ids), values)]
    expected = trl.sdft.compute_divergence(*both, alpha=1.0)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)
    gradients = [torch.autograd.grad(each.sum(), logits)[0] for each in (ours, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-6)
    whole = (logits.softmax(-1) * (logits.log_softmax(-1) - theirs.log_softmax(-1))).sum(-1)
    assert (ours >= 0).all()
    assert (ours <= whole + 1e-9).all()


# ---------------------------------------------------------------------- the output head


@pytest.mark.parametrize("transform", [LogitTransform(), LogitTransform(scale=2.0, cap=3.0)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_candidates_have_the_log_probabilities_and_gradients_of_log_softmax(monkeypatch, transform, dtype, tolerance):
    monkeypatch.setattr(function, "_ELEMENTS", {"cpu": 100})
    monkeypatch.setattr(function, "_ROW_BLOCK", 2)
    draw = torch.Generator().manual_seed(1)
    hidden, weight, bias = (
        torch.randn(*shape, dtype=dtype, generator=draw).requires_grad_() for shape in ((33, 4), (41, 4), (41,))
    )
    targets = torch.randint(41, (33,), generator=draw)
    heat = torch.rand(33, generator=draw, dtype=dtype) + 0.5
    logits = (hidden @ weight.t() + bias) * transform.scale
    logits = logits if transform.cap is None else transform.cap * torch.tanh(logits / transform.cap)
    log_p = torch.log_softmax(logits / heat[:, None], -1)
    best, ids = log_p.topk(5)
    candidates = torch.cat([ids[:, :3], targets[:, None]], -1)
    expected = (log_p.gather(-1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1), log_p.gather(-1, candidates))
    found = score_candidates(hidden, weight, bias, targets, candidates, heat, transform, entropy_gradient=True)
    upstream = [torch.randn(each.shape, dtype=dtype, generator=draw) for each in expected]
    results = [
        [*values, *torch.autograd.grad(values, (hidden, weight, bias), upstream)] for values in (found, expected)
    ]
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    likeliest = likeliest_tokens(hidden, weight, bias, 5, heat, transform)
    assert likeliest[0].tolist() == ids.tolist()
    torch.testing.assert_close(likeliest[1], best.detach(), rtol=tolerance, atol=tolerance)
    assert likeliest_tokens(hidden, weight, bias, 99, heat, transform)[0].shape == (33, 41)


def test_tokens_that_the_policy_has_no_row_for_belong_to_the_rest():
    sample = ShardSample(random_trajectories(1)[0], teacher_ids=np.array([[3, 9]], np.int32))
    sample.teacher_log_probs = np.array([[-0.5, -1]], np.float32)
    within([sample], 9)
    assert sample.teacher_ids is not None
    assert sample.teacher_ids.tolist() == [[3, 0]]
    assert sample.teacher_log_probs.tolist() == [[-0.5, -INF]]


# ---------------------------------------------------------------------- ranks


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return student_and_teacher(tmp_path_factory)


def distilling(ranks=1, teacher=None, **algorithm):
    block = {"coefficient": COEFFICIENT, "topK": TOP_K, **(teacher or {"path": "teacher"})}
    settings = {"preset": "distillation", "teacher": block, **algorithm}
    return make_spec(ranks, algorithm=settings, actor={"gradClip": 1e6}, rewards={})


def step_of(worker, folders, trajectories, budget, advantages=0.0):
    """What a step reports, and its gradient."""
    begin(worker, folders)
    plans, totals = plans_of(trajectories, worker.settings.world, budget)
    plan = plans[worker.settings.rank]
    prepared = worker.prepare(plan, totals, *bundle_of(trajectories))
    assert prepared.reverse_kl is None
    gradients = record_gradients(worker)
    given = [np.full(trajectories[i].loss_tokens, advantages, np.float32) for i in plan.samples]
    return worker.update(given, 1e-3, 0.0, MARK).sums, gradients[0]


def expected_of(folders, advantage=0.0, bound=None):
    """Sum of the divergence over all tokens, and the gradient of its mean, from whole logits.

    bound: of the importance weights that each token's divergence is multiplied with; None: none.
    """
    student, teacher = models_of(folders)
    tokens, total = sum(each.loss_tokens for each in TRAJECTORIES), 0.0
    for each in TRAJECTORIES:
        ours = logits_of(student, each)
        with torch.no_grad():
            theirs = logits_of(teacher, each)
        divergence = divergence_of(ours, theirs, TOP_K)
        sampled = torch.from_numpy(each.token_ids[each.in_loss].astype(np.int64))
        chosen = ours.log_softmax(-1).gather(-1, sampled[:, None])[:, 0]
        ratios = (chosen.detach() - torch.from_numpy(each.log_probs[each.in_loss])).exp()
        weights = torch.ones_like(ratios) if bound is None else ratios.clamp(max=bound)
        ((COEFFICIENT * weights * divergence - advantage * chosen).sum() / tokens).backward()
        total += float(divergence.detach().sum())
    return total, {name: parameter.grad for name, parameter in student.named_parameters()}


@pytest.mark.parametrize("advantage", [0.0, 0.7], ids=["alone", "with rewards"])
def test_a_step_descends_the_divergence_on_any_ranks(folders, two_ranks, advantage):
    total, theirs = expected_of(folders, advantage)
    results = [[alone(distilling(), step_of, folders, TRAJECTORIES, budget, advantage)] for budget in (10_000, 40)]
    if not advantage:
        results += [two_ranks.run(distilling(2), step_of, folders, TRAJECTORIES, budget) for budget in (10_000, 1)]
    for ranks in results:
        assert sum(sums.reverse_kl for sums, _ in ranks) == pytest.approx(total, rel=1e-4)
        for _, gradient in ranks:
            assert largest_difference(gradient, theirs) < 1e-4


def test_importance_weights_of_the_rollout_weigh_the_divergence(folders):
    _, theirs = expected_of(folders, bound=1.5)
    correction = {"rolloutIs": "token", "rolloutIsThreshold": "1.5"}
    _, gradient = alone(distilling(rolloutCorrection=correction), step_of, folders, TRAJECTORIES, 10_000)
    assert largest_difference(gradient, theirs) < 1e-4


def test_what_a_server_said_teaches_the_same(folders):
    """At temperature 1, as servers answer. The teacher of the ranks is not loaded."""
    at_one = random_trajectories(4, seed=3)
    _, teacher = models_of(folders)
    with torch.no_grad():
        best = [logits_of(teacher, each).log_softmax(-1).topk(TOP_K) for each in at_one]
    said = [Taught(each.values.numpy(), each.indices.int().numpy()) for each in best]
    given = [replace(each, taught=what) for each, what in zip(at_one, said, strict=True)]
    served = distilling(teacher={"server": {"url": "http://teacher", "model": "t"}})
    sums, gradient = alone(served, step_of, (folders[0], None), given, 10_000)
    expected, theirs = alone(distilling(), step_of, folders, at_one, 10_000)
    assert sums.reverse_kl == pytest.approx(expected.reverse_kl, rel=1e-5)
    assert largest_difference(gradient, theirs) < 1e-4
