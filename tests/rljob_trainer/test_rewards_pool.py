"""Scores, and what becomes of functions that hang, crash or return what is no reward; with real processes."""

import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from rljob_trainer.errors import InfrastructureError, RewardError
from rljob_trainer.rewards.pool import RewardPool
from tests.rljob_trainer.journal_support import task
from tests.rljob_trainer.rewards_support import BEHAVE, children, load, responses, reward_pools, rewards, scored


@pytest.fixture
def pool_of(tmp_path):
    with reward_pools(tmp_path) as make:
        yield make


def test_the_reward_is_the_weighted_sum_and_each_component_is_kept(pool_of):
    mapping = "def compute_score(data_source, solution_str, ground_truth, extra_info=None, plus=0):\n"
    mapping += "    return {'score': plus, 'tokens': extra_info['response_tokens'], 'word': 'x'}\n"
    pool = pool_of(
        rewards(
            {"name": "own", "source": BEHAVE, "weight": 0.5},
            {"name": "extra", "source": mapping, "weight": -2, "arguments": {"plus": 3}},
        )
    )
    score = scored(pool, task(7), responses("ab", "abcd"))
    assert score.task_id == "0/7/0"
    assert score.rewards.tolist() == [0.5 * 2 - 6, 0.5 * 4 - 6]
    assert score.rewards.dtype == np.float32
    assert {name: values.tolist() for name, values in score.components.items()} == {
        "own": [2, 4],
        "extra": [3, 3],
        "extra/tokens": [2, 4],
    }
    assert score.error is None


def test_a_number_that_some_samples_lack_is_left_out(pool_of):
    source = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
    source += "    return {'score': 1, 'all': 2, solution_str: 3}\n"
    score = scored(pool_of(rewards({"name": "own", "source": source})), task(7), responses("a", "b"))
    assert set(score.components) == {"own", "own/all"}


def test_a_function_gets_the_row_and_cannot_change_it_for_the_next(pool_of):
    source = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
    source += "    assert (data_source, ground_truth, extra_info.pop('a')) == ('test', 'truth', 1)\n"
    source += "    assert extra_info == {'response_tokens': 1, 'truncated': False}\n"
    source += "    return 1\n"
    function = {"source": source}
    score = scored(pool_of(rewards({"name": "one", **function}, {"name": "two", **function})), task(7), responses("x"))
    assert score.rewards.tolist() == [2]


MEET = """
import pathlib, time

def compute_score(data_source, solution_str, ground_truth, extra_info=None, folder=""):
    (pathlib.Path(folder) / solution_str).touch()
    while len(list(pathlib.Path(folder).iterdir())) < 4:
        time.sleep(0.01)
    return 1.0
"""


def test_groups_are_scored_in_parallel(pool_of, tmp_path):
    """Each call returns once the four of them have met."""
    folder = tmp_path / "met"
    folder.mkdir()
    function = {"name": "meet", "source": MEET, "arguments": {"folder": str(folder)}}
    pool = pool_of(rewards(function, processes=4))
    futures = [pool.submit(task(i), responses(str(i))) for i in range(4)]
    assert [future.result().task_id for future in futures] == [f"0/{i}/0" for i in range(4)]


def test_the_deadline_counts_from_the_start_of_the_call_not_from_queueing(pool_of):
    pool = pool_of(rewards(timeout="1s"))
    futures = [pool.submit(task(i), responses("sleep")) for i in range(5)]  # 2 s one after the other
    assert all(future.result().rewards.tolist() == [5] for future in futures)


def test_math_verify_can_use_its_alarm_there(pool_of):
    pool = pool_of(rewards({"name": "math", "builtin": "boxed_math"}))
    row = replace(task(), data_source="math", ground_truth="0.5")
    assert scored(pool, row, responses(r"\boxed{\frac{1}{2}}", r"\boxed{2}")).rewards.tolist() == [1, 0]


# ---- failures


FAILURES = [
    ("hang", "did not return within 0.5 s"),
    ("deaf", "did not return within 0.5 s"),
    ("exit", "ended its process with exit code 3"),
    ("segfault", "crashed its process: SIGSEGV"),
    ("oom", r"crashed its process: SIGKILL \(out of memory\?\)"),
    ("raise", r"raised ValueError: not this one \(line 17 of <spec.rewards.functions\[0\].source>\)"),
    ("sys.exit", r"raised SystemExit: 4 \(line 19 of <spec.rewards.functions\[0\].source>\)"),
    ("nan", "returned nan"),
    ("none", "returned None, not a number"),
]


@pytest.mark.parametrize(("kind", "reason"), FAILURES)
def test_a_failure_ends_the_job_and_names_reward_prompt_sample_and_text(pool_of, kind, reason):
    pool = pool_of(rewards(timeout="500ms"))
    with pytest.raises(
        RewardError, match=f"reward own {reason}, for prompt 0/7/0, sample 1: '{kind}'; correct it"
    ) as error:
        scored(pool, task(7), responses("fine", kind, "fine"))
    assert error.value.field == "spec.rewards.functions[0]"
    assert scored(pool, task(7), responses("fine")).rewards.tolist() == [4]


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(("kind", "reason"), FAILURES)
def test_a_failure_may_drop_its_group_alone(pool_of, kind, reason, processes):
    """Also where a process gets many responses in a message, as it does of quick functions."""
    pool = pool_of(rewards(timeout="500ms", on_error="drop_group", processes=processes))
    scored(pool, task(7), responses(*["ab"] * 10))
    futures = [pool.submit(task(i), responses("ab", kind if i == 30 else "abc")) for i in range(60)]
    scores = [future.result() for future in futures]
    dropped = scores.pop(30)
    assert re.search(reason, dropped.error)
    assert "prompt 0/30/0, sample 1" in dropped.error
    assert np.isnan(dropped.rewards).all()
    assert all((score.error, score.rewards.tolist()) == (None, [2, 3]) for score in scores)


def test_the_failing_one_of_several_functions_is_named(pool_of):
    pool = pool_of(rewards({"name": "fine", "builtin": "exact_match"}, {"name": "own", "source": BEHAVE}))
    with pytest.raises(RewardError, match="reward own raised") as error:
        scored(pool, task(7), responses("raise"))
    assert error.value.field == "spec.rewards.functions[1]"
    assert scored(pool, task(7), responses("truth")).rewards.tolist() == [6]


def test_long_responses_are_cut_in_messages(pool_of):
    source = "def compute_score(data_source, solution_str, ground_truth, extra_info=None): raise ValueError"
    with pytest.raises(RewardError) as error:
        scored(pool_of(rewards({"name": "own", "source": source})), task(7), responses("x" * 500))
    assert len(error.value.message) < 300


def test_a_process_killed_between_two_calls_is_replaced_and_nobody_is_blamed(pool_of):
    pool = pool_of(rewards())
    first = int(scored(pool, task(7), responses("pid")).rewards[0])
    for child in children():
        child.kill()
        child.wait()
    second = int(scored(pool, task(7), responses("pid")).rewards[0])
    assert first != second


def test_a_hang_costs_other_groups_nothing(pool_of):
    pool = pool_of(rewards(timeout="4s", processes=2, on_error="drop_group"))
    scored(pool, task(7), responses("sleep", "sleep"))
    hanging = pool.submit(task(0), responses("hang"))
    assert scored(pool, task(1), responses("fine")).rewards.tolist() == [4]
    assert not hanging.done()
    assert "did not return" in hanging.result().error


def test_when_no_process_can_be_started_it_is_infrastructure(pool_of, monkeypatch, tmp_path):
    pool = pool_of(rewards())
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(RewardError):
        scored(pool, task(7), responses("exit"))
    with pytest.raises(InfrastructureError, match="cannot start a reward process"):
        scored(pool, task(7), responses("fine"))
    with pytest.raises(InfrastructureError, match="cannot start a reward process"):
        load(rewards(), tmp_path)


def test_a_log_that_cannot_be_written_is_infrastructure(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InfrastructureError, match=r"cannot start a reward process: .*file"):
        RewardPool(rewards(), tmp_path, tmp_path / "file" / "rewards.log")
