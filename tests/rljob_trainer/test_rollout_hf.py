"""What engine hf alone promises or does in a way of its own; the rest: test_engine_conformance.py."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from rljob_trainer.engines.hf.engine import HfEngine
from rljob_trainer.engines.hf.sampler import uniforms
from rljob_trainer.errors import JobError
from rljob_trainer.types import Sampling
from tests.rljob_trainer.rollout_support import (
    RemoteEngine,
    answer,
    forward_log_probs,
    largest_gap,
    make_policy,
    random_prompts,
    requests,
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


def test_the_numbers_of_a_seed_are_those_of_its_own_generator():
    seeds = [5, 0, 2**63 - 1]
    expected = [np.random.Generator(np.random.Philox(key=seed)).random(7) for seed in seeds]
    np.testing.assert_array_equal(uniforms(seeds, 7), expected)


def test_bfloat16_log_probs_are_near_transformers(model_dir, policy):
    engine = HfEngine(replace(settings("hf", model_dir), dtype="bfloat16"))
    sync(engine, policy, 0)
    wanted = requests(random_prompts(4), Sampling(8))
    answers, reference = answer(engine, wanted), make_policy(model_dir, 0, torch.bfloat16)
    for request in wanted:
        theirs = forward_log_probs(reference, request.token_ids, answers[request.id, 0].token_ids)
        assert np.abs(answers[request.id, 0].log_probs - theirs).mean() < 0.1


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def bits(answers):
    return {
        key: (each.token_ids.tobytes(), each.log_probs.tobytes(), each.finish_reason) for key, each in answers.items()
    }


@pytest.fixture
def deterministic(model_dir, policy, one_thread):
    engine = HfEngine(settings("hf", model_dir, deterministic=True))
    sync(engine, policy, 0)
    return engine


WANTED = requests(random_prompts(8), Sampling(60, top_p=0.95), samples=5)


def test_a_deterministic_request_is_bit_for_bit_the_same_in_any_company(deterministic):
    together = bits(answer(deterministic, WANTED))
    assert {reason for *_, reason in together.values()} == {"stop", "length"}
    for request in reversed(WANTED):
        assert bits(answer(deterministic, [request])).items() <= together.items()
    assert bits(answer(deterministic, [WANTED[i] for i in (6, 1, 4, 2)])).items() <= together.items()


def test_deterministic_requests_have_their_turns_in_the_order_of_submission(deterministic):
    for request in WANTED[:4]:
        deterministic.submit(request)
    deterministic.abort(["1"])
    assert deterministic.unfinished == 15
    order = []
    while deterministic.unfinished:
        order += [each.request_id for each in deterministic.step()]
    assert order == sorted(order)
    assert set(order) == {"0", "2", "3"}


def test_a_deterministic_request_is_bit_for_bit_the_same_in_another_process_and_thread(
    deterministic, model_dir, policy
):
    here = bits(answer(deterministic, WANTED))
    other = RemoteEngine(settings("hf", model_dir, deterministic=True))
    try:
        sync(other, policy, 0)
        assert bits(answer(other, WANTED[2:5])).items() <= here.items()
    finally:
        other.close()
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(lambda: bits(answer(deterministic, WANTED))).result() == here


def test_a_deterministic_request_larger_than_the_batch_is_refilled_alike(model_dir, policy, one_thread):
    engine = HfEngine(settings("hf", model_dir, deterministic=True, max_num_seqs=3))
    sync(engine, policy, 0)
    together = bits(answer(engine, WANTED))
    assert bits(answer(engine, WANTED[3:4])).items() <= together.items()


def test_the_samples_of_a_request_share_the_pass_over_its_prompt(model_dir, policy):
    engine, rows = HfEngine(settings("hf", model_dir)), []
    sync(engine, policy, 0)
    engine._model.register_forward_pre_hook(lambda _, ids: rows.append(len(ids[0])))
    for request in requests(random_prompts(2), Sampling(2), samples=8):
        engine.submit(request)
    engine.step()
    assert rows == [2]


def test_tied_embeddings_are_loaded_once(tmp_path):
    folder = write_model_dir(tmp_path, tied=True)
    policy, engine = make_policy(folder, 5), HfEngine(settings("hf", folder))
    sync(engine, policy, 0)
    wanted = requests(random_prompts(3), Sampling(5))
    assert largest_gap(policy, wanted, answer(engine, wanted)) < 2e-5


# Beyond what a process can address: where the kernel overcommits, as on every node of Kubernetes, it grants less than
# that, and ends the process once the memory is used.
TOO_MANY_TOKENS = 1 << 50


def test_memory_that_does_not_suffice_is_a_jobs_error(model_dir, policy):
    engine = HfEngine(settings("hf", model_dir, max_model_len=2 * TOO_MANY_TOKENS))
    sync(engine, policy, 0)
    with pytest.raises(JobError, match=r"spec.rollout.maxNumSeqs: the host ran out of memory"):
        answer(engine, requests(random_prompts(2), Sampling(TOO_MANY_TOKENS)))
