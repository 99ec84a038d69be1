"""Engine hf against transformers' own generate and forward."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from rljob_trainer.engines.engine import NO_WEIGHTS
from rljob_trainer.engines.hf.engine import HfEngine
from rljob_trainer.engines.hf.sampler import uniforms
from rljob_trainer.errors import InfrastructureError, JobError
from rljob_trainer.old_types import Sampling
from tests.rljob_trainer.rollout_support import (
    END,
    MAX_MODEL_LEN,
    RemoteEngine,
    forward_log_probs,
    largest_gap,
    make_policy,
    random_prompts,
    requests,
    samples_of,
    settings,
    sync,
    write_model_dir,
)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_model_dir(tmp_path_factory.mktemp("hf"))


@pytest.fixture(scope="module")
def policy(model_dir):
    return make_policy(model_dir, seed=0)


@pytest.fixture(scope="module")
def engine(model_dir, policy):
    engine = HfEngine(settings("hf", model_dir))
    sync(engine, policy, 0)
    return engine


def by_name(samples):
    return {(sample.prompt_id, sample.sample_index): sample for sample in samples}


def test_greedy_responses_equal_transformers_generate(engine, policy):
    prompts = random_prompts(24)
    samples = by_name(samples_of(engine, requests(prompts), Sampling(max_tokens=20, temperature=0)))
    for row, prompt in enumerate(prompts):
        ids = torch.from_numpy(prompt).long()[None]
        theirs = policy.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False)
        assert samples[str(row), 0].token_ids.tolist() == theirs[0, len(prompt) :].tolist()


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_log_probs_equal_a_forward_pass_also_with_more_requests_than_slots(engine, policy, temperature):
    prompts = random_prompts(30)
    sampling = Sampling(max_tokens=25, temperature=temperature, top_p=0.9, top_k=50)
    samples = list(samples_of(engine, requests(prompts, samples=3), sampling))
    assert len(by_name(samples)) == 90
    assert largest_gap(policy, prompts, samples, temperature) < 2e-5


def test_greedy_log_probs_are_those_at_temperature_one(engine, policy):
    prompts = random_prompts(4)
    samples = list(samples_of(engine, requests(prompts), Sampling(max_tokens=8, temperature=0)))
    assert largest_gap(policy, prompts, samples) < 2e-5


def test_the_numbers_of_a_seed_are_those_of_its_own_generator():
    seeds = [5, 0, 2**63 - 1]
    expected = [np.random.Generator(np.random.Philox(key=seed)).random(7) for seed in seeds]
    np.testing.assert_array_equal(uniforms(seeds, 7), expected)


def test_a_response_depends_on_its_seed_and_not_on_the_batch(engine, model_dir, policy):
    prompts = random_prompts(20)
    sampling = Sampling(max_tokens=20)
    crowd = by_name(samples_of(engine, requests(prompts, samples=2), sampling))
    for request in requests(prompts, samples=2)[::7]:
        (alone,) = samples_of(engine, [request], sampling)
        assert alone.token_ids.tolist() == crowd[alone.prompt_id, alone.sample_index].token_ids.tolist()
    first, second = crowd["0", 0], crowd["0", 1]
    assert first.token_ids.tolist() != second.token_ids.tolist()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1),
        Sampling(1, temperature=0.5),
        Sampling(1, top_k=4),
        Sampling(1, top_p=0.6),
        Sampling(1, 2.0, 0.8, 20),
    ],
    ids=repr,
)
def test_tokens_are_sampled_from_the_softmax(model_dir, sampling):
    """Pearson's statistic of 8,000 draws against the probabilities, grouped into cells of 8 expected draws or more."""
    engine = HfEngine(settings("hf", model_dir, max_num_seqs=1000))
    policy = make_policy(model_dir, seed=3)
    sync(engine, policy, 0)
    prompt = random_prompts(1)[0]
    draws = [s.token_ids[0] for s in samples_of(engine, requests([prompt], samples=8000), sampling)]
    with torch.no_grad():
        logits = policy(torch.from_numpy(prompt).long()[None]).logits[0, -1].double()
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


def test_a_response_ends_with_the_end_token_and_says_stop(engine):
    samples = list(samples_of(engine, requests(random_prompts(200)), Sampling(max_tokens=60)))
    ended = [sample for sample in samples if END in sample.token_ids]
    assert ended
    for sample in samples:
        stopped = sample.finish_reason == "stop"
        assert sample.token_ids.tolist().count(END) == stopped
        assert sample.token_ids[-1] == END if stopped else len(sample.token_ids) == 60


def test_a_stop_string_ends_a_response_and_stays_in_it(engine):
    prompts = random_prompts(20)
    free = by_name(samples_of(engine, requests(prompts), Sampling(max_tokens=30)))
    longest = max(free.values(), key=lambda sample: len(sample.token_ids))
    third, fourth = longest.token_ids[3:5]
    sampling = Sampling(max_tokens=30, stop=("never", f"t{third} t{fourth} "))
    cut = by_name(samples_of(engine, requests(prompts), sampling))[longest.prompt_id, 0]
    assert cut.token_ids.tolist() == longest.token_ids[:5].tolist()
    assert cut.finish_reason == "stop"


def test_samples_stream_out_before_the_last_is_done(engine):
    prompts = random_prompts(40)
    started, seen = samples_of(engine, requests(prompts), Sampling(max_tokens=100)), []
    for sample in started:
        seen.append(sample)
        if len(seen) == 3:
            break
    started.close()
    assert len(list(samples_of(engine, requests(prompts), Sampling(max_tokens=2)))) == 40


def test_the_models_length_limits_a_response(engine):
    (prompt,) = random_prompts(1, MAX_MODEL_LEN - 5, MAX_MODEL_LEN - 5)
    (sample,) = samples_of(engine, requests([prompt]), Sampling(max_tokens=50, top_k=1))
    assert len(sample.token_ids) <= 5
    with pytest.raises(JobError, match="leaves no room"):
        list(samples_of(engine, requests(random_prompts(1, MAX_MODEL_LEN, MAX_MODEL_LEN)), Sampling(max_tokens=5)))


def test_an_engine_without_weights_refuses_to_generate(model_dir, policy):
    engine = HfEngine(settings("hf", model_dir))
    assert engine.policy_version == NO_WEIGHTS
    with pytest.raises(InfrastructureError, match="no weights"):
        list(samples_of(engine, requests(random_prompts(1)), Sampling(max_tokens=1)))


def test_bfloat16_log_probs_are_near_transformers(model_dir, policy):
    engine = HfEngine(replace(settings("hf", model_dir), dtype="bfloat16"))
    sync(engine, policy, 0)
    prompts = random_prompts(4)
    reference = make_policy(model_dir, 0, torch.bfloat16)
    for sample in samples_of(engine, requests(prompts), Sampling(max_tokens=8)):
        theirs = forward_log_probs(reference, prompts[int(sample.prompt_id)], sample.token_ids)
        assert np.abs(sample.log_probs - theirs).mean() < 0.1


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def bits(samples):
    return {
        (s.prompt_id, s.sample_index): (s.token_ids.tobytes(), s.log_probs.tobytes(), s.finish_reason) for s in samples
    }


@pytest.fixture
def deterministic(model_dir, policy, one_thread):
    engine = HfEngine(settings("hf", model_dir, deterministic=True))
    sync(engine, policy, 0)
    return engine


GROUPS = requests(random_prompts(8), samples=5)
DETERMINISTIC_SAMPLING = Sampling(max_tokens=60, top_p=0.95)


def test_a_deterministic_group_is_bit_for_bit_the_same_in_any_company(deterministic):
    together = bits(samples_of(deterministic, GROUPS, DETERMINISTIC_SAMPLING))
    assert {reason for *_, reason in together.values()} == {"stop", "length"}
    for start in reversed(range(0, len(GROUPS), 5)):
        alone = bits(samples_of(deterministic, GROUPS[start : start + 5], DETERMINISTIC_SAMPLING))
        assert alone.items() <= together.items()
    missing = [request for prompt in "6142" for request in GROUPS if request.prompt_id == prompt]
    assert bits(samples_of(deterministic, missing, DETERMINISTIC_SAMPLING)).items() <= together.items()


def test_a_deterministic_group_is_bit_for_bit_the_same_in_another_process_and_thread(deterministic, model_dir, policy):
    here = bits(samples_of(deterministic, GROUPS, DETERMINISTIC_SAMPLING))
    other = RemoteEngine(settings("hf", model_dir, deterministic=True))
    try:
        sync(other, policy, 0)
        assert bits(samples_of(other, GROUPS[10:25], DETERMINISTIC_SAMPLING)).items() <= here.items()
    finally:
        other.close()
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(lambda: bits(samples_of(deterministic, GROUPS, DETERMINISTIC_SAMPLING))).result() == here


def test_a_deterministic_group_larger_than_the_batch_is_refilled_alike(model_dir, policy, one_thread):
    engine = HfEngine(settings("hf", model_dir, deterministic=True, max_num_seqs=3))
    sync(engine, policy, 0)
    together = bits(samples_of(engine, GROUPS, DETERMINISTIC_SAMPLING))
    assert bits(samples_of(engine, GROUPS[15:20], DETERMINISTIC_SAMPLING)).items() <= together.items()
    assert len(together) == len(GROUPS)


def test_tied_embeddings_are_loaded_once(tmp_path):
    folder = write_model_dir(tmp_path, tied=True)
    policy, engine = make_policy(folder, 5), HfEngine(settings("hf", folder))
    sync(engine, policy, 0)
    prompts = random_prompts(3)
    assert largest_gap(policy, prompts, list(samples_of(engine, requests(prompts), Sampling(max_tokens=5)))) < 2e-5


# Beyond what a process can address: where the kernel overcommits, as on every node of Kubernetes, it grants less than
# that, and ends the process once the memory is used.
TOO_MANY_TOKENS = 1 << 50


def test_memory_that_does_not_suffice_is_a_jobs_error(model_dir, policy):
    engine = HfEngine(settings("hf", model_dir, max_model_len=2 * TOO_MANY_TOKENS))
    sync(engine, policy, 0)
    with pytest.raises(JobError, match=r"spec.rollout.maxNumSeqs: the host's memory did not suffice: lower it"):
        list(samples_of(engine, requests(random_prompts(2)), Sampling(max_tokens=TOO_MANY_TOKENS)))
