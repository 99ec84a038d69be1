"""Generated tasks: repeatable, with train and validation apart, and refusing what they do not know."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rljob_trainer.data.tasks import read_synthetic
from rljob_trainer.data.tasks.files import write_task
from rljob_trainer.environments.builtin.calculator import calculator
from rljob_trainer.environments.tool_calls import parse_tool_calls
from rljob_trainer.errors import DataError
from rljob_trainer.rewards.builtin.countdown import Reward
from rljob_trainer.rewards.protocol import Call


def words(url):
    return [row["prompt"][0]["content"] for row in read_synthetic(url, "spec.data.train[0]")]


def test_reverse_text_asks_for_the_word_backwards():
    rows = read_synthetic("synthetic://reverse-text?rows=300", "f")
    assert len(rows) == 300
    for row in rows:
        word = row["prompt"][0]["content"]
        assert row["reward_model"] == {"style": "rule", "ground_truth": word[::-1]}
        assert row["response"] == word[::-1]
        assert row["data_source"] == "reverse-text"
    assert {len(row["response"]) for row in rows} == set(range(3, 9))


def test_arguments_shape_the_words():
    made = words("synthetic://reverse-text?rows=200&minLength=4&maxLength=5&letters=3")
    assert {len(word) for word in made} == {4, 5}
    assert set("".join(made)) == set("abc")


def test_addition_asks_for_the_sum():
    rows = read_synthetic("synthetic://addition?rows=300&minDigits=2&maxDigits=3", "f")
    for row in rows:
        first, second = row["prompt"][0]["content"].split("+")
        assert row["response"] == row["reward_model"]["ground_truth"] == str(int(first) + int(second))
        assert {len(first), len(second)} <= {2, 3}
        assert row["ability"] == "math"


def test_arithmetic_asks_for_a_result_and_shows_calls_of_the_calculator():
    rows = read_synthetic("synthetic://arithmetic?rows=300&minDigits=2&operators=*-", "f")
    for row in rows:
        first, sign, second = row["prompt"][0]["content"].removeprefix("What is ").removesuffix("?").split()
        assert row["response"] == str(int(first) * int(second) if sign == "*" else int(first) - int(second))
        assert "tools" not in row
    rows = read_synthetic("synthetic://arithmetic?rows=3000&minDigits=2&calls=0.2", "f")
    asked = [row for row in rows if len(row["prompt"]) == 1]
    called = [row for row in asked if row["response"].startswith("<tool_call>")]
    assert len(called) / len(asked) == pytest.approx(0.2, abs=0.02)
    assert len(rows) - len(asked) == pytest.approx(len(called), rel=0.2)
    assert all(row["prompt"][-1]["content"] == row["response"] for row in rows if len(row["prompt"]) == 3)
    for row in called:
        _, (call,) = parse_tool_calls(row["response"])
        assert calculator(**call.arguments) == row["reward_model"]["ground_truth"]
    assert json.loads(rows[0]["tools"])[0]["function"]["name"] == "calculator"


def test_countdown_asks_for_an_expression_of_the_numbers():
    right = Reward()
    rows = read_synthetic("synthetic://countdown?rows=300&operators=%2B-*/&count=4&maxNumber=20", "f")
    for row in rows:
        numbers, target = row["prompt"][0]["content"].split(" = ")
        truth = row["reward_model"]["ground_truth"]
        assert truth == {"target": int(target), "numbers": [int(number) for number in numbers.split()]}
        assert len(truth["numbers"]) == 4
        assert 1 <= truth["target"] <= 99
        assert right(Call("countdown", row["response"], truth, {})) == 1, row
    written = "".join(row["response"] for row in rows)
    assert set("+-*/()") < set(written)
    assert len({row["prompt"][0]["content"] for row in rows}) > 290


def test_countdown_has_one_prompt_for_one_exercise():
    for row in read_synthetic("synthetic://countdown?rows=50", "f"):
        numbers = row["reward_model"]["ground_truth"]["numbers"]
        assert numbers == sorted(numbers), "else validation would hold exercises of the training in another order"


@pytest.mark.parametrize(
    ("task", "exercise"),
    [
        ("addition?minDigits=2", lambda prompt: tuple(sorted(prompt.split("+")))),
        ("countdown?maxNumber=12", lambda prompt: prompt.split(" = ")[0]),
    ],
    ids=["addition", "countdown"],
)
def test_what_training_has_seen_in_another_form_is_not_validation(task, exercise):
    """A sum with its numbers exchanged, and another target of the same numbers."""
    train = {exercise(word) for word in words(f"synthetic://{task}&rows=5000")}
    validation = {exercise(word) for word in words(f"synthetic://{task}&rows=500&split=validation&seed=3")}
    assert validation
    assert not train & validation


def test_the_same_arguments_make_the_same_rows_and_another_seed_others():
    assert words("synthetic://reverse-text?rows=50&seed=1") == words("synthetic://reverse-text?rows=50&seed=1")
    assert words("synthetic://reverse-text?rows=50&seed=1") != words("synthetic://reverse-text?rows=50&seed=2")


def test_the_rows_are_these_on_every_machine():
    assert words("synthetic://reverse-text?rows=3") == ["knziwuqw", "qkeggd", "vogf"]


def test_train_and_validation_share_no_word_whatever_their_seeds():
    train = set(words("synthetic://reverse-text?rows=3000&letters=4&maxLength=5"))
    validation = set(words("synthetic://reverse-text?rows=300&letters=4&maxLength=5&seed=7&split=validation"))
    assert validation
    assert not train & validation


def test_parquet_files_of_a_task_can_be_written(tmp_path):
    paths = write_task("reverse-text", tmp_path / "d", {"maxLength": "4"}, rows=20, validation_rows=5)
    assert [path.name for path in paths] == ["train.parquet", "validation.parquet"]
    assert [pq.read_table(path).num_rows for path in paths] == [20, 5]
    row = pq.read_table(paths[0]).to_pylist()[0]
    assert row["prompt"][0]["content"] == row["response"][::-1]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("synthetic://reverse_text", "unknown task 'reverse_text', did you mean 'reverse-text'?"),
        ("synthetic://", "unknown task ''; the tasks are addition, arithmetic, countdown, reverse-text"),
        ("synthetic://reverse-text?row=3", "unknown argument 'row', did you mean 'rows'?"),
        ("synthetic://reverse-text?zzz=3", "unknown argument 'zzz'; reverse-text has letters, maxLength, minLength"),
        ("synthetic://reverse-text?rows=many", "rows=many: Input should be a valid integer"),
        ("synthetic://reverse-text?rows=0", "rows=0: Input should be greater than or equal to 1"),
        ("synthetic://reverse-text?split=test", "split=test: Input should be 'train' or 'validation'"),
        ("synthetic://reverse-text?minLength=5&maxLength=4", "minLength 5 is above maxLength 4"),
        ("synthetic://addition?minDigits=3", "minDigits 3 is above maxDigits 2"),
        ("synthetic://countdown?operators=%5E", "operators=^: give one to four of + - * /"),
        (
            "synthetic://reverse-text?minLength=1&maxLength=1&letters=2&split=validation",
            "too few examples of reverse-text with these arguments for split validation",
        ),
    ],
)
def test_a_wrong_source_is_named_with_a_suggestion(url, message):
    with pytest.raises(DataError) as caught:
        read_synthetic(url, "spec.data.train[2]")
    assert caught.value.field == "spec.data.train[2]"
    assert caught.value.message.startswith(f"{url}: {message}")


def test_writing_an_unknown_task_is_refused(tmp_path):
    with pytest.raises(DataError, match="did you mean 'reverse-text'"):
        write_task("reversetext", tmp_path, {})


def test_an_unknown_argument_is_refused_with_those_that_the_task_has(tmp_path):
    with pytest.raises(DataError, match=r"unknown argument 'name'; reverse-text has letters, maxLength, minLength$"):
        write_task("reverse-text", tmp_path, {"name": "x"})


def test_files_that_are_there_are_replaced_only_on_request(tmp_path):
    first = write_task("addition", tmp_path, {}, rows=20)
    with pytest.raises(DataError, match=r"files exist: .*train.parquet, .*validation.parquet; .* --overwrite"):
        write_task("addition", tmp_path, {}, rows=30)
    assert pq.read_table(first[0]).num_rows == 20
    write_task("addition", tmp_path, {}, rows=30, overwrite=True)
    assert pq.read_table(first[0]).num_rows == 30


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_directory_in_the_place_of_a_file_is_named(tmp_path, overwrite):
    (tmp_path / "train.parquet").mkdir()
    with pytest.raises(DataError, match=r"train.parquet is a directory; choose another folder"):
        write_task("addition", tmp_path, {}, overwrite=overwrite)


def test_a_task_that_cannot_be_made_leaves_nothing(tmp_path):
    with pytest.raises(DataError, match=r"too few examples .* for split validation"):
        write_task("reverse-text", tmp_path / "d", {"minLength": "1", "maxLength": "1", "letters": "2"})
    assert not (tmp_path / "d").exists()


def test_a_countdown_that_hardly_has_an_exercise_ends_with_a_remedy():
    with pytest.raises(DataError, match=r"too few exercises have a target up to 2; raise maxTarget"):
        read_synthetic("synthetic://countdown?count=6&maxNumber=1000&maxTarget=2&operators=*", "spec.data.train[0]")


def test_a_folder_that_cannot_be_made_is_named():
    with pytest.raises(DataError, match=r"cannot write to /proc/no: .*; choose another folder"):
        write_task("addition", Path("/proc/no"), {})
