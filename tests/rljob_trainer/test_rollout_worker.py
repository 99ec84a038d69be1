"""One engine as a worker: groups, seeds, the probe, the updates."""

import threading

import numpy as np
import pytest

from rljob_trainer.engines.engine import NO_WEIGHTS
from rljob_trainer.engines.engine_worker import RolloutWorker, sample_seed
from rljob_trainer.errors import FencedError, InfrastructureError
from rljob_trainer.old_types import Prompt, Sampling
from rljob_trainer.weights.probe import probe_prompts
from tests.rljob_trainer.rollout_support import (
    VOCAB,
    forward_log_probs,
    make_policy,
    random_prompts,
    settings,
    sync,
    write_model_dir,
)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_model_dir(tmp_path_factory.mktemp("worker"))


@pytest.fixture
def worker(model_dir):
    worker = RolloutWorker(settings("hf", model_dir))
    assert worker.start()["engine"] == "hf"
    sync(worker.engine, make_policy(model_dir, 0), 5)
    return worker


def groups_of(worker, wanted, sampling, seeds):
    """One by one, as they are finished."""
    for finished in worker.generate_groups(wanted, sampling, seeds):
        assert finished
        yield from finished


def prompts(count):
    return [Prompt(f"0/{i}", ids, "test", "", {}, "") for i, ids in enumerate(random_prompts(count))]


def test_groups_come_complete_and_in_the_order_of_their_samples(worker):
    wanted = prompts(12)
    seeds = [[sample_seed(0, 1, prompt.id, index) for index in range(4)] for prompt in wanted]
    groups = list(groups_of(worker, wanted, Sampling(max_tokens=12), seeds))
    assert sorted(group.prompt.id for group in groups) == sorted(prompt.id for prompt in wanted)
    for group in groups:
        assert group.policy_version == 5
        assert [sample.sample_index for sample in group.samples] == [0, 1, 2, 3]
        assert {sample.prompt_id for sample in group.samples} == {group.prompt.id}


def test_the_same_seeds_give_the_same_groups_in_any_company(worker):
    wanted = prompts(6)
    seeds = [[sample_seed(0, 1, prompt.id, index) for index in range(3)] for prompt in wanted]
    together = {g.prompt.id: g for g in groups_of(worker, wanted, Sampling(max_tokens=10), seeds)}
    for prompt, row in list(zip(wanted, seeds, strict=True))[::2]:
        (alone,) = groups_of(worker, [prompt], Sampling(max_tokens=10), [row])
        for ours, theirs in zip(alone.samples, together[prompt.id].samples, strict=True):
            assert ours.token_ids.tolist() == theirs.token_ids.tolist()


def seeds_of(wanted):
    return [[sample_seed(0, 1, prompt.id, index) for index in range(4)] for prompt in wanted]


def token_ids(worker, wanted):
    groups = groups_of(worker, wanted, Sampling(max_tokens=10), seeds_of(wanted))
    return {group.prompt.id: [sample.token_ids.tolist() for sample in group.samples] for group in groups}


def groups_until_abandoned(worker, wanted, abandon):
    """The groups of a call that `abandon` ended after its first one."""
    stream = groups_of(worker, wanted, Sampling(max_tokens=100), seeds_of(wanted))
    groups = [next(stream)]
    abandon()
    with pytest.raises(FencedError, match="another attempt"):
        groups.extend(stream)
    return groups


def test_an_abandoned_call_ends_and_leaves_nothing_to_the_next(worker, model_dir):
    wanted = prompts(40)
    before = token_ids(worker, wanted[:4])
    assert len(groups_until_abandoned(worker, wanted, worker.abandon)) < len(wanted)
    assert token_ids(worker, wanted[:4]) == before
    sync(worker.engine, make_policy(model_dir, 1), 6)
    (group,) = groups_of(worker, wanted[:1], Sampling(max_tokens=2), seeds_of(wanted[:1]))
    assert group.policy_version == 6


def test_a_call_is_abandoned_from_another_thread(worker):
    abandon = threading.Thread(target=worker.abandon)
    assert len(groups_until_abandoned(worker, prompts(40), abandon.start)) < 40
    abandon.join()


def test_an_abandon_between_calls_reaches_none(worker):
    worker.abandon()
    assert len(list(groups_of(worker, prompts(2), Sampling(max_tokens=2), [[1, 2], [3, 4]]))) == 2
    worker.abandon()
    assert len(worker.probe(probe_prompts(VOCAB, 96), 2)) == 4


def test_an_update_that_was_cut_off_starts_anew(worker, model_dir):
    worker.begin_update(6)
    sync(worker.engine, make_policy(model_dir, 1), 6)
    assert worker.engine.policy_version == 6


def test_the_probe_answers_in_the_order_of_its_prompts(worker, model_dir):
    fixed = probe_prompts(VOCAB, 96)
    samples = worker.probe(fixed, 4)
    for prompt, sample in zip(fixed, samples, strict=True):
        ours = forward_log_probs(make_policy(model_dir, 0), prompt, sample.token_ids)
        assert np.abs(sample.log_probs - ours).max() < 2e-5


def test_seeds_are_stable_and_all_different():
    assert sample_seed(0, 1, "0/17", 3) == 6_755_075_907_737_491_714
    seeds = {sample_seed(j, s, f"0/{p}", i) for j in range(3) for s in range(3) for p in range(9) for i in range(4)}
    assert len(seeds) == 3 * 3 * 9 * 4
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_worker_without_an_engine_says_so(worker, model_dir):
    with pytest.raises(InfrastructureError, match="not running"):
        RolloutWorker(settings("hf", model_dir)).begin_update(6)
    assert worker.engine.policy_version == 5
    worker.begin_update(6)
    assert worker.engine.policy_version == NO_WEIGHTS
    worker.close()
    worker.close()
    with pytest.raises(InfrastructureError, match="not running"):
        worker.sleep()
