"""What every rollout engine does, on a CPU, against transformers' own generate and forward."""

import importlib.util
from itertools import count

import numpy as np
import pytest
import torch

from rljob_trainer.engines.engine import NO_WEIGHTS, Request
from rljob_trainer.engines.registry import create_engine
from rljob_trainer.engines.vllm.start import CPU_BLOCK
from rljob_trainer.errors import InfrastructureError, JobError
from rljob_trainer.types import Sampling
from rljob_trainer.weights.probe import WeightSyncError
from tests.rljob_trainer.rollout_support import (
    END,
    MAX_MODEL_LEN,
    RemoteEngine,
    answer,
    check_by_probe,
    finish,
    forward_log_probs,
    largest_gap,
    make_policy,
    random_prompts,
    requests,
    settings,
    skipped,
    stale_bucket,
    swapped_shard,
    sync,
    write_model_dir,
)

CLOSE = 2e-2 if torch.cuda.is_available() else 2e-5
"""Nats. On a GPU vLLM multiplies float32 with TF32 in its attention: 0.005 was measured on an H200."""

MIXED = (
    Sampling(12, temperature=0),
    Sampling(12, temperature=0.5, top_p=0.8),
    Sampling(12, temperature=0.7, top_p=0.9, top_k=50),
    Sampling(12),
    Sampling(9, top_k=5),
    Sampling(15, temperature=1.5),
)
VERSIONS = count(1)


@pytest.fixture(scope="module", params=["hf", "vllm"])
def kind(request):
    if request.param == "vllm" and importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    return request.param


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_model_dir(tmp_path_factory.mktemp("engines"))


@pytest.fixture(scope="module")
def policies(model_dir):
    return [make_policy(model_dir, seed) for seed in range(2)]


@pytest.fixture(scope="module")
def started(kind, model_dir):
    """vLLM in a process of its own, as it leaves threads and environment variables behind."""
    engine = (RemoteEngine if kind == "vllm" else create_engine)(settings(kind, model_dir))
    assert (engine.policy_version, engine.unfinished) == (NO_WEIGHTS, 0)
    with pytest.raises(InfrastructureError, match="no weights"):
        engine.submit(Request("r", random_prompts(1)[0], Sampling(1), (0,)))
    yield engine
    engine.close()


@pytest.fixture
def engine(kind, started, policies):
    """With the weights of policies[0], whose probe prompts are in its prefix cache, and nothing unfinished."""
    started.pause(keep=False)
    started.resume()
    update(started, policies[0], kind)
    return started


def update(engine, policy, kind):
    """Sync and probe; returns the version."""
    version = next(VERSIONS)
    sync(engine, policy, version)
    engine.wake()
    check_by_probe(engine, policy, version, kind)
    assert engine.policy_version == version
    return version


def ids(answers):
    return {key: each.token_ids.tolist() for key, each in answers.items()}


def steps(engine, number):
    return {(each.request_id, each.sample): each for _ in range(number) for each in engine.step()}


def test_greedy_answers_equal_transformers_generate(engine, policies):
    wanted = requests(random_prompts(24), Sampling(16, temperature=0))
    answers = answer(engine, wanted)
    for request in wanted:
        prompt = torch.from_numpy(request.token_ids).long()[None]
        theirs = policies[0].generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=16, do_sample=False
        )
        assert answers[request.id, 0].token_ids.tolist() == theirs[0, prompt.shape[1] :].tolist()


def test_a_later_turn_finds_the_former_ones_in_the_prefix_cache(engine, kind):
    prompt, observation = random_prompts(2, 60, 60, seed=5)
    turn = answer(engine, [Request("first", prompt, Sampling(40), (0,))])["first", 0]
    context = np.concatenate([prompt, turn.token_ids, observation])
    later = answer(engine, [Request("later", context, Sampling(4), (0,))])["later", 0]
    whole_blocks = (len(prompt) + len(turn.token_ids) - 1) // CPU_BLOCK * CPU_BLOCK  # the last token was only sampled
    assert whole_blocks > len(prompt)
    assert (turn.cached_tokens, later.cached_tokens) == {"hf": (None, None), "vllm": (0, whole_blocks)}[kind]


def mixed(samples=2, prompts=24):
    """More samples than an engine runs at once, with neighbours that are sampled in another way."""
    pairs = enumerate(random_prompts(prompts))
    return [Request(f"m{i}", ids, MIXED[i % len(MIXED)], tuple(range(10 * i, 10 * i + samples))) for i, ids in pairs]


def test_log_probs_are_at_each_requests_temperature_and_before_truncation(engine, policies):
    wanted = mixed()
    answers = answer(engine, wanted)
    assert largest_gap(policies[0], wanted, answers) < CLOSE
    for request in wanted:
        for sample in range(len(request.seeds)):
            assert len(answers[request.id, sample].token_ids) <= request.sampling.max_tokens


def test_requests_that_come_while_others_run_get_the_same_answers(engine, policies):
    alone = ids(answer(engine, mixed()))
    early, late = mixed()[::2], mixed()[1::2]
    for request in early[:4]:
        engine.submit(request)
    answers = steps(engine, 3)
    for request in [*early[4:], *late]:
        engine.submit(request)
        answers |= steps(engine, 1)
    answers |= finish(engine)
    assert largest_gap(policies[0], mixed(), answers) < CLOSE
    assert ids(answers) == alone or not engine.capabilities.seeds


def test_the_seed_of_a_sample_decides_it_in_any_company(engine):
    if not engine.capabilities.seeds:
        pytest.skip("the engine's own seed decides")
    prompts = random_prompts(12)
    crowd = ids(answer(engine, requests(prompts, Sampling(10), samples=3)))
    for request in requests(prompts, Sampling(10), samples=3)[::5]:
        assert ids(answer(engine, [request])).items() <= crowd.items()
    assert ids(answer(engine, requests(prompts, Sampling(10), samples=3, seed=77))) != crowd
    assert crowd["0", 0] != crowd["0", 1]


@pytest.mark.parametrize("sampling", [Sampling(1, 0.5), Sampling(1, top_k=4), Sampling(1, 2.0, 0.8, 20)], ids=repr)
def test_tokens_are_drawn_from_the_truncated_softmax(engine, policies, sampling):
    """Pearson's statistic of 3,000 draws, in cells of 8 expected draws or more, beside requests of another kind."""
    (prompt,) = random_prompts(1)
    answers = answer(engine, [Request("draws", prompt, sampling, tuple(range(3000))), *mixed(samples=1, prompts=6)])
    draws = [each.token_ids[0] for (request, _), each in answers.items() if request == "draws"]
    with torch.no_grad():
        logits = policies[0](torch.from_numpy(prompt).long()[None]).logits[0, -1].double()
    expected = truncated_softmax(logits.numpy(), sampling) * len(draws)
    observed = np.bincount(draws, minlength=len(expected))
    assert observed[expected == 0].sum() == 0
    cells = [(observed[i], expected[i]) for i in np.flatnonzero(expected >= 8)]
    rest = (expected > 0) & (expected < 8)
    cells.append((observed[rest].sum(), expected[rest].sum()))
    statistic = sum((o - e) ** 2 / e for o, e in cells if e > 0)
    freedom = len(cells) - 1
    assert statistic < freedom + 5 * np.sqrt(2 * freedom) + 5


def truncated_softmax(logits, sampling):
    """The definition, token by token: top-k, then the likeliest tokens until their mass reaches top-p."""
    probs = np.exp((logits - logits.max()) / sampling.temperature)
    order = np.argsort(-probs)
    if sampling.top_k > 0:
        probs[order[sampling.top_k :]] = 0
    probs /= probs.sum()
    mass = 0.0
    for token in order:
        if mass >= sampling.top_p:
            probs[token] = 0
        mass += probs[token]
    return probs / probs.sum()


def test_samples_end_with_the_end_token_or_at_their_limit(engine):
    answers = answer(engine, requests(random_prompts(60), Sampling(60))).values()
    assert {each.finish_reason for each in answers} == {"stop", "length"}
    for each in answers:
        stopped = each.finish_reason == "stop"
        assert each.token_ids.tolist().count(END) == stopped
        assert each.token_ids[-1] == END if stopped else len(each.token_ids) == 60


def test_a_stop_string_ends_the_samples_of_its_request_and_stays_in_them(engine):
    prompts = random_prompts(8)
    free = answer(engine, requests(prompts, Sampling(20)))
    (name, _), longest = max(free.items(), key=lambda item: len(item[1].token_ids))
    third, fourth = longest.token_ids[3:5]
    stop = Sampling(20, stop=("never", f"t{third} t{fourth} "))
    own = requests(prompts, stop)[int(name)]
    others = [request for request in requests(prompts, Sampling(20)) if request.id != name]
    answers = answer(engine, [*others[:3], own, *others[3:]])
    if engine.capabilities.seeds:
        cut = answers[name, 0]
        assert (cut.token_ids.tolist(), cut.finish_reason) == (longest.token_ids[:5].tolist(), "stop")
        assert ids({**answers, (name, 0): longest}) == ids(free)


def test_the_models_length_limits_a_sample(engine):
    (prompt,) = random_prompts(1, MAX_MODEL_LEN - 5, MAX_MODEL_LEN - 5)
    assert len(answer(engine, requests([prompt], Sampling(50, top_k=1)))["0", 0].token_ids) <= 5


def test_what_an_engine_cannot_do_is_a_jobs_error_that_names_the_field(engine):
    with pytest.raises(JobError, match=r"spec\.data\.maxPromptTokens"):
        engine.submit(Request("r", random_prompts(1, MAX_MODEL_LEN, MAX_MODEL_LEN)[0], Sampling(5), (0,)))
    assert not engine.capabilities.adapters
    with pytest.raises(JobError, match=r"spec\.rollout\.engine"):
        engine.submit(Request("r", random_prompts(1)[0], Sampling(5), (0,), adapter="a"))
    assert engine.unfinished == 0
    assert list(engine.step()) == []


def test_an_abort_takes_out_its_requests_alone(engine, policies):
    wanted = requests(random_prompts(20), Sampling(30), samples=2)
    for request in wanted:
        engine.submit(request)
    assert engine.unfinished == 40
    answers = steps(engine, 4)
    gone = {request.id for request in wanted[::2]}
    before = engine.unfinished
    running = sum(1 for request in wanted[::2] for sample in (0, 1) if (request.id, sample) not in answers)
    engine.abort({*gone, "unknown"})
    assert engine.unfinished == before - running
    answers |= finish(engine)
    rest = [request for request in wanted if request.id not in gone]
    assert {name for name, _ in answers} >= {request.id for request in rest}
    assert largest_gap(policies[0], rest, answers) < CLOSE
    engine.submit(wanted[0])
    engine.abort([wanted[0].id])
    assert engine.unfinished == 0


def test_kept_samples_go_on_with_the_weights_of_an_update(kind, engine, policies):
    """Also if the update was cut off once, and with a sleep, which takes nothing on a CPU, before it."""
    old = engine.policy_version
    short = Request("short", random_prompts(1)[0], Sampling(3), (0, 1))
    wanted = [short, *mixed()]
    for request in wanted:
        engine.submit(request)
    answers = steps(engine, 6)
    unfinished = engine.unfinished
    assert unfinished
    with pytest.raises(InfrastructureError, match=f"{unfinished} samples are unfinished: pause"):
        engine.begin_update(old + 1)
    with pytest.raises(InfrastructureError, match=f"{unfinished} samples are unfinished: pause"):
        engine.sleep()
    engine.pause(keep=True)
    assert list(engine.step()) == []
    engine.sleep()
    engine.begin_update(old)
    version = next(VERSIONS)
    sync(engine, policies[1], version)
    engine.wake()
    assert engine.unfinished == unfinished
    engine.resume()
    answers |= finish(engine)
    spans = set()
    for request in wanted:
        for sample in (0, 1):
            each = answers[request.id, sample]
            temperature = request.sampling.temperature or 1.0
            assert (np.diff(each.versions) >= 0).all()
            for number, policy in ((old, policies[0]), (version, policies[1])):
                own = each.versions == number
                ours = forward_log_probs(policy, request.token_ids, each.token_ids, temperature)
                assert not own.any() or np.abs(each.log_probs - ours)[own].max() < CLOSE
            spans.add(frozenset(each.versions.tolist()))
    assert spans == {frozenset([old]), frozenset([version]), frozenset([old, version])}


def test_samples_that_a_pause_does_not_keep_are_gone(kind, engine, policies):
    for request in mixed():
        engine.submit(request)
    steps(engine, 3)
    engine.pause(keep=False)
    assert engine.unfinished == 0
    version = next(VERSIONS)
    sync(engine, policies[1], version)
    engine.resume()
    check_by_probe(engine, policies[1], version, kind)
    answers = answer(engine, mixed())
    assert largest_gap(policies[1], mixed(), answers) < CLOSE
    assert all((each.versions == version).all() for each in answers.values())


def test_a_pause_without_an_update_changes_no_answer(engine, policies):
    alone = ids(answer(engine, mixed()))
    for request in mixed():
        engine.submit(request)
    answers = steps(engine, 5)
    engine.pause(keep=True)
    engine.resume()
    answers |= finish(engine)
    assert largest_gap(policies[0], mixed(), answers) < CLOSE
    assert ids(answers) == alone or not engine.capabilities.seeds


def test_an_engine_generates_nothing_during_an_update(engine, policies):
    engine.begin_update(next(VERSIONS))
    assert engine.policy_version == NO_WEIGHTS
    with pytest.raises(InfrastructureError, match="no weights"):
        engine.submit(mixed()[0])


def test_the_probe_catches_any_one_skipped_parameter(kind, engine, policies):
    old, new = policies
    names = [name for name, _ in new.named_parameters()]
    assert len(names) == 27
    for name in names:
        version = next(VERSIONS)
        sync(engine, new, version, skipped(old, name))
        with pytest.raises(WeightSyncError):
            check_by_probe(engine, new, version, kind)


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight", "lm_head.weight"]
)
def test_the_probe_catches_a_swapped_shard(kind, engine, policies, name):
    version = next(VERSIONS)
    sync(engine, policies[1], version, swapped_shard(name))
    with pytest.raises(WeightSyncError):
        check_by_probe(engine, policies[1], version, kind)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_probe_catches_a_stale_bucket(kind, engine, policies, index):
    old, new = policies
    version = next(VERSIONS)
    sync(engine, new, version, stale_bucket(old, index))
    with pytest.raises(WeightSyncError):
        check_by_probe(engine, new, version, kind)


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.k_proj.weight", "model.norm.weight"])
def test_a_parameter_that_never_arrives_is_named(engine, policies, name):
    version = next(VERSIONS)
    with pytest.raises(JobError, match=rf"^spec\.rollout\.engine: .* {name} "):
        sync(engine, policies[1], version, lambda tensors: ((n, t) for n, t in tensors if n != name))


def test_a_parameter_that_is_not_the_models_is_refused(engine, policies):
    stray = ("model.layers.9.mlp.up_proj.weight", torch.zeros(1))
    with pytest.raises(JobError, match=r"^spec\.rollout\.engine: .*layers\.9"):
        sync(engine, policies[1], next(VERSIONS), lambda tensors: [*tensors, stray])
