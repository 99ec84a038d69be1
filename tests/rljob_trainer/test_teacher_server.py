"""What a teacher's server is asked, how its answers are read, and what becomes of servers that fail: played ones."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rljob_api.v1alpha1.teacher import TeacherServer
from rljob_trainer.errors import InfrastructureError, JobError
from rljob_trainer.rollouts.teaching import PROBE, TeacherClient, taught_by
from rljob_trainer.types import Group
from tests.rljob_trainer.journal_support import agents_episode, episode, group, task
from tests.rljob_trainer.played_server import Answer, played

LONGEST = 100
FIELD = "spec.algorithm.teacher.server"


def encode(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def log_prob(prompt: list[int], place: int) -> float:
    """What the played teacher says of a token: it depends on all up to it, and float32 holds it."""
    return -float(sum(prompt[: place + 1]) % 1024) / 64 - len(prompt[: place + 1])


def taught_of(body: dict[str, Any], _number: int = 0) -> Answer:
    """As vLLM answers, of the tokens alone."""
    if body["path"] == "/tokenize":
        return 200, {"tokens": encode(body["prompt"])}
    prompt = body["prompt"]
    rows = [{str(token): {"logprob": log_prob(prompt, place)}} for place, token in enumerate(prompt)]
    return 200, {"choices": [{"text": "", "prompt_logprobs": [None, *rows[1:]]}]}


def serving(length: int = LONGEST + 1) -> dict[str, Any]:
    return {"data": [{"id": "big", "root": "org/big", "max_model_len": length}]}


def ask(url: str, *groups: Group, top_k: int = 0, **fields: Any) -> list[Group]:
    async def asked() -> list[Group]:
        server = TeacherServer.model_validate({"url": url, "model": "big", **fields})
        client = TeacherClient(server, top_k, LONGEST, encode)
        try:
            return await asyncio.gather(*(client.taught(each) for each in groups))
        finally:
            await client.close()

    return asyncio.run(asked())


def error_of(answer: Callable[[dict[str, Any], int], Answer], serves: Any = None, **fields: Any) -> JobError:
    with played(answer, serves or serving()) as url, pytest.raises(JobError) as error:
        ask(url, group(), **fields)
    assert error.value.field == FIELD
    return error.value


def test_each_sample_is_asked_about_up_to_its_last_token_in_the_loss():
    bodies: list[dict[str, Any]] = []

    def answer(body: dict[str, Any], number: int) -> Answer:
        bodies.append(body)
        return taught_of(body)

    made = Group(task(3), (episode(3), agents_episode(3, 1), episode(3, 2, length=0)))
    with played(answer, serving()) as url:
        (found,) = ask(f"{url}/", made)
    assert [body["path"] for body in bodies].count("/tokenize") == 1
    prompts = {tuple(body["prompt"]): body for body in bodies if body["path"] == "/v1/completions"}
    given = [part for part in made.trajectories if part.loss_tokens]
    assert set(prompts) == {tuple(part.token_ids[: np.flatnonzero(part.in_loss)[-1] + 1].tolist()) for part in given}
    assert {(body["model"], body["prompt_logprobs"], body["max_tokens"]) for body in prompts.values()} == {
        ("big", 0, 1)
    }
    for before, after in zip(made.trajectories, found.trajectories, strict=True):
        assert after.taught is not None
        places = np.flatnonzero(before.in_loss)
        expected = [log_prob(before.token_ids.tolist(), place) for place in places]
        assert (after.taught.log_probs.dtype, after.taught.log_probs.tolist()) == (np.float32, expected)
        assert replace(after, taught=None) == before


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    keys: list[str] = []

    def answer(body: dict[str, Any], number: int) -> Answer:
        keys.append(body["headers"]["Authorization"])
        return taught_of(body)

    secret: dict[str, Any] = {"key": {"name": "secret", "key": "k"}}
    with played(answer, serving()) as url:
        with pytest.raises(JobError, match="set the environment variable RLJOB_TEACHER_KEY") as missing:
            ask(url, group(), **secret)
        monkeypatch.setenv("RLJOB_TEACHER_KEY", "sesame\n")
        ask(url, group(), **secret)
    assert missing.value.field == f"{FIELD}.key"
    assert set(keys) == {"Bearer sesame"}


def test_no_more_requests_than_asked_for_are_in_flight():
    now, most, lock = [0], [0], threading.Lock()

    def answer(body: dict[str, Any], number: int) -> Answer:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.05)
        with lock:
            now[0] -= 1
        return taught_of(body)

    with played(answer, serving()) as url:
        ask(url, *(group(number, 4) for number in range(3)), concurrency=3)
    assert most == [3]


@pytest.mark.parametrize("trouble", [(500, "engine is dead"), (429, ""), (0, ""), (200, "no json")], ids=str)
def test_trouble_that_passes_is_waited_for_and_one_that_stays_is_infrastructure(trouble: Answer):
    with played(lambda body, number: trouble if number <= 2 else taught_of(body), serving()) as url:
        assert ask(url, group())[0].trajectories[0].taught is not None
    with played(lambda body, number: trouble, serving()) as url, pytest.raises(InfrastructureError) as error:
        ask(url, group(), timeout="500ms", lostAfter="500ms")
    assert error.value.message.startswith(f"teacher big at {url} gave no answer for 500ms: ")


def test_a_server_of_no_teacher_of_this_policy_is_named_before_it_sees_a_sample():
    def other(body: dict[str, Any], number: int) -> Answer:
        assert body["path"] == "/tokenize"
        return 200, {"tokens": [1, 2]}

    absent, short = error_of(taught_of, {"data": [{"id": "org/small"}]}), error_of(taught_of, serving(100))
    wrong = error_of(other)
    assert "serves org/small, small, not big; check" in absent.message
    assert "has 100 tokens, and a sample may have 100 and needs one more" in short.message
    assert "tokenizer of the teacher's server is not the policy's: it makes [1, 2] of" in wrong.message
    assert str(encode(PROBE))[:20] in wrong.message


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((400, "maximum context length is 8"), "rejected it with 400: maximum context length is 8; the sample has 7"),
        ((404, "no"), "/v1/completions answered 404: no; check the server's URL, model and key"),
        ((200, {"choices": [{"text": ""}]}), "without the log-probabilities of the prompt's tokens (prompt_logprobs)"),
        ((200, {"error": "x"}), "answered {'error': 'x'}, without the log-probabilities"),
    ],
    ids=str,
)
def test_an_answer_without_a_signal_ends_the_job(answer: Answer, words: str):
    served = error_of(lambda body, number: taught_of(body) if body["path"] == "/tokenize" else answer)
    assert words in served.message


def test_a_server_without_a_tokenizer_to_compare_is_believed():
    def answer(body: dict[str, Any], number: int) -> Answer:
        return (404, "") if body["path"] == "/tokenize" else taught_of(body)

    with played(answer, serving()) as url:
        assert ask(url, group())[0].trajectories[0].taught is not None


def test_a_log_probability_that_is_none_is_no_signal():
    answer = {"choices": [{"prompt_logprobs": [None, {"7": {"logprob": float("-inf")}}]}]}
    with pytest.raises(JobError, match="gave -inf as log-probability"):
        taught_by(answer, [5, 7], [1], 0)
    with pytest.raises(JobError, match="without the log-probabilities"):
        taught_by(answer, [5, 7, 8], [1], 0)


def test_of_the_likeliest_tokens_the_sampled_one_is_left_out_if_it_is_none():
    """vLLM answers K tokens and the prompt's own, in any order; equal ones are in the order of their ids."""
    rows: list[Any] = [None, {"7": -5.0, "3": -0.5, "9": -1.0}, {"8": -1.5, "2": -1.5, "4": -0.25}]
    entries = [row and {token: {"logprob": value} for token, value in row.items()} for row in rows]
    answer = {"choices": [{"prompt_logprobs": entries}]}
    found = taught_by(answer, [5, 7, 4], [1, 2], 2)
    assert found.ids is not None
    assert (found.ids.tolist(), found.ids.dtype) == ([[3, 9], [4, 2]], np.int32)
    assert (found.log_probs.tolist(), found.log_probs.dtype) == ([[-0.5, -1.0], [-0.25, -1.5]], np.float32)
    with pytest.raises(JobError, match="without the log-probabilities"):
        taught_by(answer, [5, 7, 4], [1, 2], 4)


def test_the_likeliest_tokens_are_asked_for_and_a_server_that_refuses_so_many_is_named():
    bodies: list[Any] = []

    def answer(body: dict[str, Any], number: int) -> Answer:
        if body["path"] == "/tokenize":
            return taught_of(body)
        bodies.append(body["prompt_logprobs"])
        return 400, "Requested prompt logprobs of 30, which is greater than max allowed: 20"

    with played(answer, serving()) as url, pytest.raises(JobError) as error:
        ask(url, group(), top_k=30)
    assert error.value.message.endswith("and vLLM's --max-logprobs must be at least topK, 30")
    assert set(bodies) == {30}
