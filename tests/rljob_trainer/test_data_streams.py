"""From a spec to tasks and examples: token ids, lengths, ids, and a stream that resumes."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog
from structlog.testing import capture_logs

from rljob_api.v1alpha1 import Data, RLJobSpec
from rljob_api.v1alpha1.model import Tokenizer as TokenizerSpec
from rljob_trainer.data.prompts import load_prompts
from rljob_trainer.data.stream import SupervisedStream, TaskStream
from rljob_trainer.data.supervised import load_supervised
from rljob_trainer.data.tokenizer import build_tokenizer
from rljob_trainer.errors import DataError
from rljob_trainer.loop.gradients import GradientGuard
from rljob_trainer.loop.loop import Loop
from rljob_trainer.loop.state import LoopState
from tests.rljob_trainer.checkpoint_support import make_spec

WORDS = ["abc", "a", "abcdefgh", "bc", "cab"]


@pytest.fixture
def tokenizer():
    return build_tokenizer(TokenizerSpec(), ["abcdefgh"])


def row(word):
    return {
        "data_source": "test",
        "prompt": [{"role": "user", "content": word}],
        "reward_model": {"style": "rule", "ground_truth": word[::-1]},
        "extra_info": {"length": len(word)},
        "response": word[::-1],
    }


@pytest.fixture
def folder(tmp_path):
    pq.write_table(pa.Table.from_pylist([row(word) for word in WORDS]), tmp_path / "train.parquet")
    return tmp_path


def data(**changes):
    return Data.model_validate({"train": ["train.parquet"], "maxPromptTokens": 32, "maxResponseTokens": 32, **changes})


def job(**changes):
    settings = {"train": ["train.parquet"], "maxPromptTokens": 32, "maxResponseTokens": 32, **changes}
    return RLJobSpec.model_validate(
        {
            "model": {"fromScratch": {}},
            "data": settings,
            "algorithm": {"preset": "sft"},
            "training": {"steps": 1},
        }
    )


def test_a_task_is_the_row_through_the_chat_template(folder, tokenizer):
    task = load_prompts(data(), tokenizer, folder).item(0, 3)
    assert task.id == "3/0/0"
    assert task.messages == [{"role": "user", "content": "abc"}]
    assert task.token_ids.tolist() == tokenizer.encode("<|user|>abc<|assistant|>", add_special_tokens=False)
    assert task.token_ids.dtype == np.int32
    assert (task.data_source, task.ground_truth, task.extra_info) == ("test", "cba", {"length": 3})
    assert (task.again().id, task.again().again().id) == ("3/0/1", "3/0/2")


def test_a_task_is_found_by_its_id(folder, tokenizer):
    dataset = load_prompts(data(maxPromptTokens=5), tokenizer, folder)
    task = dataset.item_of("4/3/2")
    assert (task.id, task.ground_truth, task.token_ids.tolist()) == (
        "4/3/2",
        "cb",
        dataset.item(2, 0).token_ids.tolist(),
    )
    for unknown in ("0/2/0", "0/9/0"):  # one that was left out, and one that there is not
        with pytest.raises(KeyError):
            dataset.item_of(unknown)


def test_long_prompts_are_left_out_and_counted_and_ids_keep_the_files_row(folder, tokenizer):
    with structlog.testing.capture_logs() as logs:
        dataset = load_prompts(data(maxPromptTokens=5), tokenizer, folder)
    assert [(each["event"], each["rows"], each["filtered"]) for each in logs] == [("rows_tokenized", 4, 1)]
    assert [task.id for task in dataset.all("validation")] == [f"validation/{i}/0" for i in (0, 1, 3, 4)]
    assert [task.ground_truth for task in dataset.all(0)] == ["cba", "a", "cb", "bac"]


def test_a_prompt_of_exactly_the_limit_stays(folder, tokenizer):
    assert [len(load_prompts(data(maxPromptTokens=limit), tokenizer, folder)) for limit in (10, 9)] == [5, 4]


def test_long_prompts_may_be_an_error(folder, tokenizer):
    with pytest.raises(DataError, match=r"train\[0\]: .*row 2: the prompt has 10 tokens, but"):
        load_prompts(data(maxPromptTokens=5, overlongPrompts="fail"), tokenizer, folder)


def test_a_data_set_without_a_prompt_that_fits_is_an_error(folder, tokenizer):
    with pytest.raises(DataError, match="all 5 rows are longer than maxPromptTokens"):
        load_prompts(data(maxPromptTokens=2), tokenizer, folder)


def test_a_malformed_row_is_named_with_file_and_row(folder, tokenizer):
    rows = [row("a"), row("b"), {**row("c"), "data_source": None}]
    (folder / "bad.jsonl").write_text("".join(json.dumps(value) + "\n" for value in rows))
    with pytest.raises(DataError, match=r"spec.data.train\[1\]: .*bad.jsonl: line 3: column 'data_source' is None"):
        load_prompts(data(train=["train.parquet", "bad.jsonl"]), tokenizer, folder)


def test_validation_reads_its_own_files_and_names_its_own_field(folder, tokenizer):
    dataset = load_prompts(data(validation=["synthetic://reverse-text?rows=7"]), tokenizer, folder, "validation")
    assert len(dataset) == 7
    with pytest.raises(DataError, match=r"spec.data.validation\[0\]: .* does not exist"):
        load_prompts(data(validation=["none.jsonl"]), tokenizer, folder, "validation")


def test_a_template_that_refuses_a_row_names_it(folder, tokenizer):
    (folder / "tool.jsonl").write_text(json.dumps({**row("a"), "prompt": [{"role": "tool", "content": "a"}]}))
    with pytest.raises(DataError, match="line 1: the chat template rejects the conversation: roles are system, user"):
        load_prompts(data(train=["tool.jsonl"]), tokenizer, folder)


def test_a_broken_template_and_a_missing_one_name_their_field(folder, tokenizer):
    tokenizer.chat_template = "{% for %}"
    with pytest.raises(DataError, match=r"spec\.model\.chatTemplate: line 1"):
        load_prompts(data(), tokenizer, folder)
    tokenizer.chat_template = None
    with pytest.raises(DataError, match=r"spec\.model\.chatTemplate: the tokenizer has no chat template"):
        load_prompts(data(), tokenizer, folder)


def stream_of(folder, tokenizer, seed=5, **options):
    return TaskStream(load_prompts(data(), tokenizer, folder), seed=seed, **options)


def ids_of(tasks):
    return [task.id for task in tasks]


def test_a_resumed_stream_gives_the_same_tasks(folder, tokenizer):
    whole, first, second = (stream_of(folder, tokenizer) for _ in range(3))
    expected = [name for _ in range(4) for name in ids_of(whole.next(3))]
    before = ids_of(first.next(3) + first.next(3))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert before + ids_of(second.next(3) + second.next(3)) == expected
    assert len(set(expected[:5])) == 5
    assert second.task(expected[0]).id == expected[0], "without moving the position"
    assert second.state_dict() == whole.state_dict()


def test_tasks_that_were_issued_come_first_also_after_a_resume(folder, tokenizer):
    first, second = stream_of(folder, tokenizer), stream_of(folder, tokenizer)
    used, open_ = first.next(2), first.next(3)
    first.issue_again(ids_of(open_))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert ids_of(second.next(2)) == ids_of(open_[:2])
    rest = ids_of(second.next(3))
    assert rest[0] == open_[2].id
    assert not set(rest) & set(ids_of(used))
    assert second.state_dict()["issued"] == []


def test_hard_prompts_that_wait_when_the_data_ends_are_counted(folder, tokenizer):
    stream = stream_of(folder, tokenizer, epochs=1)
    stream.issue_again(ids_of(stream.next(5))[:2])
    nothing: Any = None
    spec = make_spec(training={"epochs": 1, "steps": 9})
    state = LoopState(stream, None, nothing, GradientGuard(spec.training.on_bad_gradient), "", nothing)
    rest = dict.fromkeys(("volume", "stage", "held", "reinforced", "checkpoints", "reporting", "requests"), nothing)
    loop = Loop(spec=spec, state=state, saved=0, lost=False, ranks=nothing, fingerprint="", **rest)
    with capture_logs() as logs:
        assert list(loop._steps()) == []
    assert logs[-1]["event"] == "hard_prompts_left"
    assert logs[-1]["prompts"] == 2


def test_every_epoch_begins_with_the_easiest_rows(folder, tokenizer):
    dataset = load_prompts(data(), tokenizer, folder)
    hard = np.arange(len(dataset)) % 2 * 1.0
    plain = stream_of(folder, tokenizer)
    ordered, resumed = (stream_of(folder, tokenizer, difficulties=hard) for _ in range(2))
    for _ in range(2):
        rows = [int(task.id.split("/")[1]) for task in ordered.next(len(dataset))]
        shuffled = [int(task.id.split("/")[1]) for task in plain.next(len(dataset))]
        assert rows == [row for level in (0, 1) for row in shuffled if row % 2 == level]
    resumed.load_state_dict(json.loads(json.dumps(ordered.state_dict())))
    assert ids_of(resumed.next(3)) == ids_of(ordered.next(3))
    with pytest.raises(DataError, match="the data changed"):
        resumed.load_state_dict(plain.state_dict())


def test_measured_rewards_order_the_next_epoch_and_survive_a_resume(folder, tokenizer):
    measuring, resumed = (stream_of(folder, tokenizer, measures=True) for _ in range(2))
    plain = stream_of(folder, tokenizer)
    count = len(load_prompts(data(), tokenizer, folder))
    rows = [int(task.id.split("/")[1]) for task in measuring.next(count)]
    assert rows == [int(task.id.split("/")[1]) for task in plain.next(count)], "the first epoch is as it was"
    for row in rows[1:]:
        measuring.measure(f"0/{row}/0", float(row % 3))
    first = measuring.next(1)
    measuring.measure(first[0].id, -5.0)  # in this epoch it changes nothing
    resumed.load_state_dict(json.loads(json.dumps(measuring.state_dict())))
    left = [measuring.next(count - 1), resumed.next(count - 1)]
    assert [task.id for task in left[0]] == [task.id for task in left[1]]
    second = [int(task.id.split("/")[1]) for task in first + left[0]]
    assert second[-1] == rows[0], "it was not measured"
    assert [row % 3 for row in second[:-1]] == sorted((row % 3 for row in rows[1:]), reverse=True)
    third = [stream.next(1)[0].id for stream in (measuring, resumed)]
    assert third[0] == third[1] != first[0].id


def test_measured_rewards_are_of_the_rows_that_fit(folder, tokenizer):
    """The longest word, row 2, is filtered: the rows behind it have another place than in the file."""
    shorter = data(maxPromptTokens=load_prompts(data(), tokenizer, folder).item(0, 0).token_ids.size)
    dataset = load_prompts(shorter.model_copy(update={"overlong_prompts": "filter"}), tokenizer, folder)
    stream, resumed = (TaskStream(dataset, seed=5, measures=True) for _ in range(2))
    first = stream.next(3)
    assert len(dataset) == 4
    for task in first:
        stream.measure(task.id, float(task.id.split("/")[1]))
    resumed.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    (last,) = stream.next(1)
    assert resumed.next(1)[0].id == last.id
    stream.measure(last.id, float(last.id.split("/")[1]))
    assert [task.id for task in stream.next(4)] == ["1/4/0", "1/3/0", "1/1/0", "1/0/0"]


def test_a_row_without_its_difficulty_is_named(folder, tokenizer):
    with pytest.raises(
        DataError, match=r"data\.difficulty needs a number in extra_info\.level, not None; extra_info has"
    ):
        load_prompts(data(), tokenizer, folder).difficulties("level")


def test_a_bounded_stream_ends_with_a_short_batch(folder, tokenizer):
    stream = stream_of(folder, tokenizer, epochs=1)
    assert (len(stream.next(3)), stream.exhausted, len(stream.next(3)), stream.exhausted) == (3, False, 2, True)


@pytest.mark.parametrize("change", ["ground_truth", "word", "order"])
def test_a_resume_on_changed_data_is_refused(folder, tokenizer, change):
    state = stream_of(folder, tokenizer).state_dict()
    rows = [row(word) for word in WORDS]
    if change == "ground_truth":
        rows[1]["reward_model"]["ground_truth"] = "b"
    elif change == "word":
        rows[1]["prompt"][0]["content"] = "b"
    else:
        rows.reverse()
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")
    with pytest.raises(DataError, match="the data changed since the checkpoint"):
        stream_of(folder, tokenizer).load_state_dict(state)


def test_the_fingerprint_is_the_same_from_parquet_and_jsonl(folder, tokenizer):
    (folder / "train.jsonl").write_text("".join(json.dumps(row(word)) + "\n" for word in WORDS))
    one = load_prompts(data(), tokenizer, folder).fingerprint
    assert load_prompts(data(train=["train.jsonl"]), tokenizer, folder).fingerprint == one


def test_an_example_is_prompt_response_and_end(folder, tokenizer):
    example = SupervisedStream(load_supervised(job(), tokenizer, folder), seed=0, shuffle=False).next(1)[0]
    assert example.id == "0/0"
    ids, in_loss = example.trajectory.token_ids, example.trajectory.in_loss
    assert tokenizer.decode(ids.tolist()) == "<|user|>abc<|assistant|>cba<|end|>"
    assert tokenizer.decode(ids[in_loss].tolist()) == "cba<|end|>"


def test_conversations_are_examples_too(folder, tokenizer):
    turns = [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    messages = [{"role": role, "content": content} for role, content in turns]
    (folder / "chat.jsonl").write_text(json.dumps({"messages": messages}))
    example = load_supervised(job(train=["chat.jsonl"]), tokenizer, folder).item(0, 0)
    ids, in_loss = example.trajectory.token_ids, example.trajectory.in_loss
    assert tokenizer.decode(ids.tolist()) == "<|user|>a<|assistant|>b<|end|><|user|>c<|assistant|>d<|end|>"
    assert tokenizer.decode(ids[in_loss].tolist()) == "d<|end|>"


def test_long_responses_are_left_out_with_their_end_token_counted(folder, tokenizer):
    assert [len(load_supervised(job(maxResponseTokens=limit), tokenizer, folder)) for limit in (9, 8)] == [5, 4]


def test_supervised_data_without_a_target_column_is_refused(folder, tokenizer):
    rows = [{key: value for key, value in row("abc").items() if key != "response"}]
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")
    with pytest.raises(DataError, match=r"spec.data.train\[0\]: .*needs the columns prompt and response, or messages"):
        load_supervised(job(), tokenizer, folder)
