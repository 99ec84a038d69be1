"""What reward models are sent, how their answers are read, and what becomes of servers that fail: played ones."""

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from rljob_api.v1alpha1 import RewardModel, Rewards
from rljob_trainer.errors import InfrastructureError, JobError, RewardError
from rljob_trainer.rewards.models.formats import Unscored, format_of
from rljob_trainer.rewards.models.group import RewardModels
from rljob_trainer.rewards.policy import Response
from rljob_trainer.types import Task
from tests.rljob_trainer.played_server import Answer, played

CLASSIFIER = {"name": "rm", "path": "m", "kind": "classifier"}
JUDGE = {
    "name": "judge", "path": "m", "kind": "generative", "promptTemplate": "{prompt} -> {response}",
    "scorePattern": r"Score: (\S+)",
}  # fmt: skip
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
TASK = Task("0/7/0", MESSAGES, np.arange(3, dtype=np.int32), {"answer": 2}, {}, "test")


def format_(**fields: Any) -> Any:
    return format_of(RewardModel.model_validate(fields), "spec.rewards.models[0]")


def pooled(*scores: float) -> dict[str, Any]:
    return {"data": [{"data": base64.b64encode(np.array(scores, dtype=np.float32).tobytes()).decode()}]}


def said(text: str | None) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}}]}


# ---- what is sent, and what is read


def test_a_classifier_gets_the_conversation_with_the_response_and_gives_a_logit():
    classifier = format_(**CLASSIFIER)
    body = classifier.request(TASK, "2")

    assert body["messages"] == [*MESSAGES, {"role": "assistant", "content": "2"}]
    assert (body["task"], body["use_activation"]) == ("classify", False)
    assert classifier.score(pooled(-3.5)) == -3.5


def test_placeholders_are_replaced_once_and_other_braces_stay():
    template = '{prompt}|{response}|{ground_truth}|{"score": 1}|{x}'
    body = format_(**CLASSIFIER, promptTemplate=template).request(TASK, "I say {ground_truth}")
    assert body["input"] == 'Be brief.\n\n1+1?|I say {ground_truth}|{"answer": 2}|{"score": 1}|{x}'


def test_a_judge_is_asked_in_a_message_and_its_last_score_counts():
    judge = format_(**JUDGE)
    body = judge.request(TASK, "2")

    assert body["messages"] == [{"role": "user", "content": "Be brief.\n\n1+1? -> 2"}]
    assert (body["temperature"], body["max_tokens"]) == (0, 512)
    assert judge.score(said("Score: 1\nNo. Score: 0.25")) == 0.25
    assert format_(**JUDGE, maxTokens=9).request(TASK, "2")["max_tokens"] == 9


@pytest.mark.parametrize(
    ("model", "answer", "words"),
    [
        (CLASSIFIER, pooled(float("nan")), "gave nan as score"),
        (CLASSIFIER, pooled(float("-inf")), "gave -inf as score"),
        (CLASSIFIER, pooled(1, 2), r"gave 2 scores; a classifier needs one label \(num_labels: 1\)"),
        (CLASSIFIER, {"data": []}, r"answered {'data': \[\]}, which has no scores"),
        (JUDGE, said("Score: inf"), "gave inf as score"),
        (JUDGE, said("Score: high"), "gave 'high' as score, not a number"),
        (JUDGE, said("I refuse"), "answered without a score: scorePattern is not in 'I refuse'"),
        (JUDGE, said(None), "answered without a score: scorePattern is not in ''"),
        (JUDGE, {"error": "x"}, "answered {'error': 'x'}, which is not a chat completion"),
    ],
)
def test_an_answer_without_a_finite_score_says_what_it_is(model, answer, words):
    with pytest.raises(Unscored, match=words):
        format_(**model).score(answer)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [("(", "is not a regular expression: missing"), ("(a)(b)", "has 2 groups"), ("a", "has 0 groups")],
)
def test_a_pattern_that_is_none_is_refused_at_the_start(pattern, words):
    with pytest.raises(RewardError, match=words) as error:
        format_(**{**JUDGE, "scorePattern": pattern})
    assert error.value.field == "spec.rewards.models[0].scorePattern"


# ---- groups, and servers that fail


def length(body: dict[str, Any], _number: int = 0) -> Answer:
    return 200, pooled(len(body["messages"][-1]["content"]))


@contextmanager
def asking(url: str, on_error: str = "fail", **fields: Any) -> Iterator[RewardModels]:
    model = {**CLASSIFIER, "timeout": "5s", "lostAfter": "60s", **fields}
    models = RewardModels(Rewards.model_validate({"models": [model], "onError": on_error}), {"rm": url})
    try:
        yield models
    finally:
        models.close()


def score(models: RewardModels, *texts: str) -> Any:
    return models.submit(TASK, [Response(text, len(text)) for text in texts]).result(timeout=120)


def test_a_group_has_the_weighted_sum_and_each_model_s_own_scores():
    second = {**CLASSIFIER, "name": "other", "weight": -2}
    rewards = Rewards.model_validate({"models": [{**CLASSIFIER, "weight": 0.5}, second]})
    with played(length) as url, played(lambda body, number: (200, pooled(1.0))) as other:
        models = RewardModels(rewards, {"rm": url, "other": other})
        group = score(models, "a", "abcd")
        models.close()
    assert group.rewards.tolist() == [0.5 - 2, 2 - 2]
    assert {name: values.tolist() for name, values in group.components.items()} == {"rm": [1, 4], "other": [1, 1]}
    assert (group.task_id, group.error) == ("0/7/0", None)


def test_a_server_elsewhere_is_asked_with_its_key_for_the_model_by_name(monkeypatch):
    asked: list[Any] = []

    def answer(body: dict[str, Any], number: int) -> Answer:
        asked.append((body["model"], body["headers"]["Authorization"]))
        return 200, said("Score: 3")

    with played(answer) as url:
        model = {**JUDGE, "path": "org/judge", "url": f"{url}/", "key": {"name": "secret", "key": "k"}}
        rewards = Rewards.model_validate({"models": [model]})
        with pytest.raises(JobError, match="RLJOB_REWARD_KEY_JUDGE") as missing:
            RewardModels(rewards, {})
        monkeypatch.setenv("RLJOB_REWARD_KEY_JUDGE", "sesame\n")
        models = RewardModels(rewards, {})
        assert score(models, "a").rewards.tolist() == [3]
        models.close()
    assert missing.value.field == "spec.rewards.models[0].key"
    assert asked == [("org/judge", "Bearer sesame")]


def test_a_rate_limit_spreads_requests_and_the_wait_is_not_held_against_the_server(monkeypatch):
    """One a minute: each waits a minute longer than the one before, beyond lostAfter."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    with played(length) as url, asking(url, rateLimit=1, timeout="50s", lostAfter="50s") as models:
        monkeypatch.setattr("rljob_trainer.model_server.asyncio.sleep", sleep)
        assert score(models, "a", "b", "c", "d").rewards.tolist() == [1, 1, 1, 1]
    assert [round(wait / 60) for wait in waits] == [0, 1, 2, 3, 4], "the first is the question which model it serves"


def test_a_server_is_asked_for_all_responses_of_several_groups_at_once():
    """This one answers none before all of them wait."""
    waiting = threading.Barrier(16)

    def answer(body: dict[str, Any], number: int) -> Answer:
        waiting.wait(30)
        return length(body)

    responses = [Response("abc", 3)] * 8
    with played(answer) as url, asking(url, timeout="30s", lostAfter="30s") as models:
        groups = [group.result(120) for group in [models.submit(TASK, responses) for _ in range(2)]]
    assert [group.rewards.tolist() for group in groups] == [[3.0] * 8] * 2


@pytest.mark.parametrize(
    "trouble", [(500, "engine is dead"), (503, ""), (429, ""), (0, ""), (200, "no json")], ids=lambda each: str(each[0])
)
def test_trouble_that_passes_is_waited_for_and_never_a_reward(trouble):
    with played(lambda body, number: trouble if number <= 3 else length(body)) as url, asking(url) as models:
        group = score(models, "abc")
    assert group.rewards.tolist() == [3]


def lost_in(url: str) -> str:
    soon = {"timeout": "1s", "lostAfter": "1s"}
    with asking(url, "drop_group", **soon) as models, pytest.raises(InfrastructureError) as error:
        score(models, "abc")
    return error.value.message


def test_a_server_that_is_gone_or_only_fails_is_infrastructure_whatever_on_error_says():
    with played(lambda body, number: (500, "EngineDeadError")) as url:
        assert lost_in(url).endswith("gave no answer for 1s: it answered 500: EngineDeadError")
    assert lost_in(url).startswith(f"reward model rm at {url} gave no answer for 1s: ConnectError")


def test_a_server_that_hangs_is_asked_again():
    held = threading.Event()

    def answer(body: dict[str, Any], number: int) -> Answer:
        if number == 1:
            held.wait(60)
        return length(body)

    with played(answer) as url, asking(url, timeout="500ms") as models:
        group = score(models, "abc")
        held.set()
    assert group.rewards.tolist() == [3]


def bad(body: dict[str, Any], _number: int) -> Answer:
    content = body["messages"][-1]["content"]
    if content == "long":
        return 400, {"message": "maximum context length is 8"}
    return 200, pooled(float("nan") if content == "nan" else 1.0)


@pytest.mark.parametrize(
    ("text", "words"), [("nan", "gave nan as score"), ("long", "rejected it with 400: .*length is 8.*")]
)
def test_a_response_without_a_score_ends_the_job_by_name_or_its_group_alone(text, words):
    named = f"reward rm {words}, for prompt 0/7/0, sample 1: '{text}'"
    with played(bad) as url:
        with asking(url) as models, pytest.raises(RewardError, match=f"{named}; correct it") as error:
            score(models, "ok", text)
        with asking(url, on_error="drop_group") as models:
            dropped, kept = score(models, "ok", text), score(models, "ok")
    assert error.value.field == "spec.rewards.models[0]"
    assert np.isnan(dropped.rewards).all()
    assert f"sample 1: '{text}'" in dropped.error
    assert (kept.error, kept.rewards.tolist()) == (None, [1])


def test_a_server_that_the_job_started_is_asked_with_the_job_s_key(monkeypatch):
    monkeypatch.setenv("RLJOB_REWARD_KEY_RM", "sesame")
    asked: list[Any] = []

    def answer(body: dict[str, Any], number: int) -> Answer:
        asked.append(body["headers"]["Authorization"])
        return length(body)

    with played(answer) as url, asking(url) as models:
        score(models, "a")
    assert asked == ["Bearer sesame"]


@pytest.mark.parametrize("serves", ["org/another", {"data": []}, {"error": "x"}, []], ids=str)
def test_a_server_of_another_model_ends_the_job_before_it_sees_a_response(serves):
    asked: list[Any] = []

    def answer(body: dict[str, Any], number: int) -> Answer:
        asked.append(body)
        return length(body)

    with played(answer, serves) as url, asking(url, "drop_group") as models, pytest.raises(RewardError) as error:
        score(models, "abc")
    assert error.value.message.startswith(url)
    assert error.value.field == "spec.rewards.models[0]"
    assert asked == []


@pytest.mark.parametrize("status", [404, 501, 401])
def test_a_server_of_something_else_ends_the_job(status):
    other = played(lambda body, number: (status, "no"))
    with other as url, asking(url, "drop_group") as models, pytest.raises(RewardError) as error:
        score(models, "abc")
    assert error.value.message.startswith(f"{url}/pooling answered {status}: no")


def test_a_model_without_a_known_server_is_named():
    with pytest.raises(JobError, match="no server URL for rm"):
        RewardModels(Rewards.model_validate({"models": [CLASSIFIER]}), {})


def test_closing_ends_what_is_asked():
    held = threading.Event()

    def answer(body: dict[str, Any], number: int) -> Answer:
        held.wait(60)
        return length(body)

    with played(answer) as url:
        with asking(url) as models:
            future = models.submit(TASK, [Response("a", 1)])
        held.set()
        with pytest.raises(InfrastructureError, match="closed before the group was scored"):
            future.result(timeout=60)
