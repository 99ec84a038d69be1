"""Tasks of reasoning-gym: rows, splits and scores are the library's; a wrong URL is refused before anything starts."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rljob_api.validation import load_rljob
from rljob_trainer.data import gym
from rljob_trainer.data.gym import check_gym, gym_errors, read_gym, score
from rljob_trainer.data.rows import open_rows, peek
from rljob_trainer.errors import DataError
from rljob_trainer.rewards.builtin.reasoning_gym import Reward
from rljob_trainer.rewards.protocol import Call
from tests.rljob_api.example_files import EXAMPLES
from tests.rljob_trainer.journal_support import task
from tests.rljob_trainer.rewards_support import responses, reward_pools, rewards

reasoning_gym = pytest.importorskip("reasoning_gym", reason="make setup installs it if a C compiler is present")

SUMS = "reasoning-gym://chain_sum?size=400&seed=3&max_terms=2&max_digits=1"
FIELD = "spec.data.train[0]"


def questions(rows):
    return [row["prompt"][-1]["content"] for row in rows]


def scored(row, answer):
    extra = row["extra_info"]
    return score(extra["source"], extra["index"], extra["question"], answer)


def test_the_rows_are_the_librarys_questions_in_its_order():
    made = reasoning_gym.create_dataset("chain_sum", size=400, seed=3, max_terms=2, max_digits=1)
    rows = read_gym(f"{SUMS}&split=all", FIELD)
    assert questions(rows) == [entry["question"] for entry in made]
    assert [row["reward_model"]["ground_truth"] for row in rows] == [entry["answer"] for entry in made]
    assert {row["data_source"] for row in rows} == {"reasoning-gym/chain_sum"}
    extra = rows[7]["extra_info"]
    assert extra == {"split": "all", "index": 7, "source": f"{SUMS}&split=all", "question": extra["question"]}
    assert len({row["extra_info"]["question"] for row in rows}) == len(set(questions(rows))) > 1


def test_the_splits_share_no_question_with_equal_or_different_seeds():
    train, validation = read_gym(SUMS, FIELD), read_gym(f"{SUMS}&split=validation", FIELD)
    assert len(train) + len(validation) == 400
    assert len(train) > 5 * len(validation) > 0
    others = read_gym(f"{SUMS.replace('seed=3', 'seed=4')}&split=validation", FIELD)
    assert not set(questions(train)) & set(questions([*validation, *others]))


@pytest.mark.parametrize(
    ("url", "wrong", "partly"),
    [
        (SUMS, "1000", False),
        ("reasoning-gym://letter_counting?size=5&min_words=3&max_words=3", "none", False),
        ("reasoning-gym://sentence_reordering?size=5", "none", True),
    ],
    ids=["chain_sum", "letter_counting", "sentence_reordering"],
)
def test_the_tasks_own_verifier_scores_an_answer(url, wrong, partly):
    row = read_gym(f"{url}&split=all", FIELD)[0]
    dataset = gym._open(*gym._parts(row["extra_info"]["source"])).dataset
    for answer in (row["response"], wrong):
        assert scored(row, answer) == dataset.score_answer(answer, dataset[0])
    assert scored(row, row["response"]) == 1
    assert (scored(row, wrong) > 0) == partly


def test_an_answer_that_a_verifier_cannot_read_gets_no_reward(monkeypatch):
    primes, coins = (
        read_gym(f"reasoning-gym://{task}?size=1&split=all", FIELD)[0] for task in ("prime_factorization", "coin_flip")
    )
    assert scored(primes, "two") == 0, "int() raises ValueError"
    monkeypatch.setattr(gym, "_VERIFIER_SECONDS", 0.1)
    assert scored(coins, "1e999999999") == 0, "a number of a billion digits"
    monkeypatch.setattr(gym._opened(primes["extra_info"]["source"]).dataset, "score_answer", lambda *_: sys.exit())
    assert scored(primes, "two") == 0


CALLS_EVAL = re.compile(r"\b(eval|exec|parse_expr|sympify)\(")
RUNS_ITS_OWN_TEXT = {
    "basic_arithmetic", "bitwise_arithmetic", "codeio", "generators_00_49", "generators_50_99", "number_sorting",
    "propositional_logic",
}  # fmt: skip


def test_the_tasks_that_run_an_answer_are_all_that_the_library_has():
    """Read a file that is new here: does it give an answer to one of these functions?"""
    files = Path(reasoning_gym.__file__).parent.rglob("*.py")
    found = {file.stem for file in files if CALLS_EVAL.search(file.read_text("utf-8"))}
    assert found == gym.RUNS_ANSWERS | RUNS_ITS_OWN_TEXT


def test_a_task_that_runs_an_answer_opens_no_question():
    with pytest.raises(DataError, match="the verifier of countdown runs an answer as Python; choose another task"):
        score("reasoning-gym://countdown?size=1", 0, "", "1")


def test_the_reward_finds_the_answer_in_a_response():
    row = next(row for row in read_gym(SUMS, FIELD) if row["response"] == "3")

    def reward(text, **arguments):
        return Reward(**arguments)(Call("", text, None, row["extra_info"]))

    assert reward("3") == reward("It is <answer> 3 </answer>.") == 1
    assert reward("4 - 1 = 3.", answer="number") == reward("**3.0**", answer="number") == 1
    assert reward("4 - 1 = 3.") == pytest.approx(1 / 10), (
        "the verifier pays a part for an answer that holds the right one"
    )
    assert reward("4 - 1 = 3.", partial=False) == reward("three", answer="number") == reward("") == 0
    with pytest.raises(
        ValueError, match="extra_info has no source, index and question; score rows of reasoning-gym:// alone"
    ):
        Reward()(Call("", "3", "3", {}))


def test_a_system_prompt_of_the_library_asks_for_tags_and_the_supervised_answer_has_them():
    row = read_gym(f"{SUMS}&system=direct", FIELD)[0]
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert row["response"] == f"<answer>{row['reward_model']['ground_truth']}</answer>"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("chainsum", "unknown task 'chainsum', did you mean 'chain_sum'?; the library has ab, "),
        ("chain_sum?max_term=2", "unknown argument 'max_term', did you mean 'max_terms'?; chain_sum has allow_neg"),
        ("chain_sum?max_terms=x", "max_terms=x: Input should be a valid integer"),
        ("chain_sum?max_terms=1", "max_terms must be >= min_terms; correct the arguments of chain_sum"),
        ("chain_sum?split=test", "split=test: Input should be 'train', 'validation' or 'all'"),
        ("chain_sum?system=defalt", "system=defalt: Input should be 'DeepSeekZero', 'default'"),
        ("chain_sum?size=0", "size must be positive; correct the arguments of chain_sum"),
        ("n_queens?size=9", "the verifier of n_queens runs an answer as Python; choose another task"),
        (
            'composite?datasets=[{"name":"countdown","weight":1,"config":{}}]',
            "the verifier of countdown runs an answer as Python; choose another task",
        ),
    ],
)
def test_a_wrong_source_is_named_with_a_suggestion_before_the_run(url, message):
    with pytest.raises(DataError) as caught:
        peek([f"reasoning-gym://{url}"], Path(), "spec.data.train")
    assert caught.value.field == FIELD
    assert caught.value.message.startswith(f"reasoning-gym://{url}: {message}")


def test_lists_are_written_with_commas_or_as_json():
    for operators in ("%2B,*", '["%2B","*"]'):
        rows = read_gym(f"reasoning-gym://basic_arithmetic?size=30&operators={operators}&split=all", FIELD)
        assert not any(sign in question for question in questions(rows) for sign in ("- ", "/"))


def test_a_split_without_a_question_is_an_error():
    with pytest.raises(DataError, match="the split has none of its questions; raise size"):
        open_rows(["reasoning-gym://chain_sum?size=1&split=validation"], Path(), "spec.data.validation")


def test_without_the_library_a_run_names_the_extra_and_validate_says_nothing(monkeypatch):
    monkeypatch.setattr(gym, "find_spec", lambda _: None)
    assert not list(gym_errors("reasoning-gym://chainsum", FIELD))
    with pytest.raises(DataError, match=r"not installed; pip install 'rljob-trainer\[reasoning-gym\]'"):
        check_gym(SUMS, FIELD)


def test_reward_processes_score_a_row_against_its_own_question(tmp_path, monkeypatch):
    """Questions of the first three depend on the hash seed, those of the last on Python's own generator."""
    names = ("isomorphic_strings", "ransom_note", "word_ladder", "list_functions")
    urls = [f"reasoning-gym://{name}?size=20&split=all" for name in names]
    program = "import json; from rljob_trainer.data.gym import read_gym\n"
    program += f"print(json.dumps([read_gym(url, '') for url in {urls}]))"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": "0"}, check=True, capture_output=True
    )
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with reward_pools(tmp_path) as pool_of:
        pool = pool_of(rewards({"name": "right", "builtin": "reasoning_gym", "arguments": {"answer": "whole"}}))
        for rows in json.loads(done.stdout):
            found = [
                pool.submit(replace(task(i), extra_info=row["extra_info"]), responses(row["response"]))
                for i, row in enumerate(rows)
            ]
            assert [each.result().rewards.tolist() for each in found] == [[1]] * 20, rows[0]["data_source"]


def test_a_question_that_is_another_one_here_is_an_error():
    row = read_gym(SUMS, FIELD)[0]
    with pytest.raises(ValueError, match=r"question \d+ is another one here than in the row; .*PYTHONHASHSEED=0"):
        score(row["extra_info"]["source"], row["extra_info"]["index"], "another", "1")


def test_the_examples_splits_are_apart():
    data = load_rljob(EXAMPLES / "smollm2/rljob.yaml", []).spec.data
    train, validation = (
        {question for source in sources for question in questions(read_gym(source, FIELD))}
        for sources in (data.train, data.validation)
    )
    assert len(train) > 200
    assert len(validation) >= 20
    assert not train & validation
