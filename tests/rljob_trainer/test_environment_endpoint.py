"""Agents that know only base_url and api_key: with the real openai client, over HTTP, in environment processes."""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from rljob_trainer.types import Episode
from tests.rljob_trainer import chat_templates as templates
from tests.rljob_trainer.environments_support import Played, Script, ids_of, playing
from tests.rljob_trainer.run_support import wait_until

HEAD = "import json, os, sys, time, asyncio, openai, httpx\n"
TWO_TURNS = (
    HEAD
    + """
def run(task, base_url, api_key, stream=False):
    client, messages = openai.OpenAI(base_url=base_url, api_key=api_key), list(task.messages)
    for _ in range(2):
        if stream:
            chunks = list(client.chat.completions.create(
                model="m", messages=messages, stream=True, stream_options={"include_usage": True}))
            text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
            assert [each.choices[0].finish_reason for each in chunks if each.choices] == [None, "stop"]
            messages.append({"role": "assistant", "content": text})
            usage = chunks[-1].usage
        else:
            answer = client.chat.completions.create(model="m", messages=messages, temperature=0.5)
            text, usage = answer.choices[0].message.content, answer.usage
            messages.append(answer.choices[0].message)
        messages.append({"role": "user", "content": [{"type": "text", "text": "Again"}]})
    right = float(text == task.ground_truth)
    return {"reward": right, "prompt": usage.prompt_tokens, "sampled": usage.completion_tokens}
"""
)


def texts(play: Played, episode: Episode) -> list[str]:
    return [play.tokenized.text(part.token_ids.tolist()) for part in episode.trajectories]


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_with_the_openai_client_is_recorded_as_it_was_sampled(stream, tmp_path):
    """The answer " 7" is one that templates trim; what was sampled stays."""
    with playing(tmp_path, source=TWO_TURNS, arguments={"stream": stream}) as play:
        policy = Script(play.tokenized, " 7<|end|>", "8<|end|>")
        episode = play.of(policy, truth="8")
    (part,) = episode.trajectories
    assert texts(play, episode) == ["<|user|>Play<|assistant|> 7<|end|><|user|>Again<|assistant|>8<|end|>"]
    sampled = [part.token_ids[turn.start : turn.end].tolist() for turn in part.turns]
    assert sampled == [ids_of(play.tokenized, text).tolist() for text in (" 7<|end|>", "8<|end|>")]
    in_loss = np.concatenate([np.arange(turn.start, turn.end) for turn in part.turns])
    assert np.flatnonzero(part.in_loss).tolist() == in_loss.tolist()
    assert part.log_probs[in_loss].tolist() == [-0.5] * len(sampled[0]) + [-1.0] * len(sampled[1])
    assert [turn.temperature for turn in part.turns] == [1.0, 1.0], "the job decides"
    prompt = part.turns[1].start
    assert (episode.reward, episode.counts) == (1, {"turns": 2, "splits": 0, "prompt": prompt, "sampled": 2})


def test_an_empty_answer_is_text_and_not_null(tmp_path):
    with playing(tmp_path, source=TWO_TURNS) as play:
        episode = play.of(Script(play.tokenized, "7<|end|>", "<|end|>"), truth="")
    assert (episode.status, episode.reward) == ("finished", 1), episode.reason


def test_tokens_that_a_template_would_merge_otherwise_stay_as_sampled(tmp_path):
    """7 and 8 sampled as bytes of their own stay so, whatever tokens the text would have now."""
    with playing(tmp_path, source=TWO_TURNS) as play:
        odd: Any = Script(play.tokenized, "7<|end|>", "8<|end|>")
        extra = play.tokenized.chat.tokenizer
        extra.add_tokens(["78"])  # later text has another token for the same letters
        first = np.concatenate([ids_of(play.tokenized, "7"), ids_of(play.tokenized, "8<|end|>")])
        original = odd.generate

        async def generate(token_ids, max_tokens=None, stop=()):
            completion = await original(token_ids, max_tokens, stop)
            if len(odd.asked) > 1:
                return completion
            return type(completion)("r", 0, first, np.full(3, -1, np.float32), np.ones(3, np.int32), "stop")

        odd.generate = generate
        episode = play.of(odd, truth="8")
    (part,) = episode.trajectories
    start, end = part.turns[0][:2]
    assert part.token_ids[start:end].tolist() == first.tolist()
    assert ids_of(play.tokenized, "78<|end|>").tolist() != first.tolist()


REWRITES = (
    HEAD
    + """
async def run(task, base_url, api_key):
    client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key)
    ask = lambda *messages: client.chat.completions.create(model="m", messages=[*messages])
    await ask(*task.messages)
    await ask({"role": "user", "content": "a summary"})
    assert (await client.models.list()).data[0].id == "policy"
    httpx.post(base_url + "/reward", json={"reward": 0.5, "metrics": {"seen": 2}},
               headers={"Authorization": "Bearer " + api_key}).raise_for_status()
"""
)


def test_a_conversation_that_is_not_continued_begins_a_trajectory_and_a_reward_may_be_posted(tmp_path):
    with playing(tmp_path, source=REWRITES) as play:
        episode = play("a<|end|>", "b<|end|>")
    assert texts(play, episode) == ["<|user|>Play<|assistant|>a<|end|>", "<|user|>a summary<|assistant|>b<|end|>"]
    assert (episode.reward, episode.counts) == (0.5, {"turns": 2, "splits": 1, "seen": 2})


TOOLS = (
    HEAD
    + """
SCHEMA = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}

def run(task, base_url, api_key):
    client, messages, calls = openai.OpenAI(base_url=base_url, api_key=api_key), list(task.messages), 0
    while True:
        choice = client.chat.completions.create(model="m", messages=messages, tools=[SCHEMA]).choices[0]
        messages.append(choice.message)
        if not choice.message.tool_calls:
            return {"reward": 1.0, "calls": calls}
        assert choice.finish_reason == "tool_calls"
        for call in choice.message.tool_calls:
            total = sum(json.loads(call.function.arguments).values())
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(total)})
            calls += 1
"""
)


def test_tools_of_a_request_are_called_and_a_broken_call_is_text(tmp_path):
    call = 'I add.<tool_call>{"name":"add",   "arguments": {"a": 1, "b": 6}}</tool_call><|im_end|>'
    with playing(tmp_path, source=TOOLS, template=templates.TOOLS, tokens=2000) as play:
        episode = play(call, call, "<tool_call>broken</tool_call><|im_end|>")
    (text,) = texts(play, episode)
    assert text.startswith("<|im_start|>system\n[{")
    assert text.count(call + "\n<|im_start|>tool\n7<|im_end|>\n<|im_start|>assistant\n") == 2
    assert episode.counts == {"turns": 3, "splits": 0, "calls": 2}


COMPLETES = (
    HEAD
    + """
def run(task, base_url, api_key):
    client, text = openai.OpenAI(base_url=base_url, api_key=api_key), "1+1="
    first = client.completions.create(model="m", prompt=text, stop=["\\nGot"], max_tokens=50)
    assert (first.choices[0].text, first.choices[0].finish_reason) == ("2", "stop")
    text += first.choices[0].text + "\\nGot it: "
    chunks = list(client.completions.create(model="m", prompt=[text], stream=True))
    assert [each.choices[0].text for each in chunks] == ["3"]
    client.completions.create(model="m", prompt=[1, 2, 3])
    return 1.0
"""
)


def test_texts_are_completed_and_continued_with_their_tokens(tmp_path):
    with playing(tmp_path, source=COMPLETES) as play:
        policy = Script(play.tokenized, "2\nGot", "3<|end|>", "4<|end|>")
        episode = play.of(policy)
    assert policy.limits[0] == 50
    assert texts(play, episode)[0] == "1+1=2\nGot it: 3<|end|>"
    assert episode.trajectories[1].token_ids[:3].tolist() == [1, 2, 3]


REFUSED = (
    HEAD
    + """
def refused(create, code, **fields):
    try:
        create(model="m", **fields)
    except openai.APIStatusError as error:
        assert (error.status_code, error.code) == (400, code), error
        return error.message
    raise AssertionError(f"{fields} were not refused")

def run(task, base_url, api_key):
    client = openai.OpenAI(base_url=base_url, api_key=api_key)
    chat, complete = client.chat.completions.create, client.completions.create
    for name, value in {"n": 2, "frequency_penalty": 0.5, "logit_bias": {"1": 5}, "logprobs": True, "max_tokens": 0,
                        "response_format": {"type": "json_object"}}.items():
        message = refused(chat, "unsupported_request", messages=task.messages, **{name: value})
        assert name in message, message
    assert "reasoning" in refused(chat, "unsupported_request", messages=task.messages, extra_body={"reasoning": 1})
    image = [{"type": "image_url", "image_url": {"url": "data:"}}]
    refused(chat, "invalid_messages", messages=[{"role": "user", "content": image}])
    refused(chat, "refused", messages=[{"role": "judge", "content": ""}])
    refused(complete, "refused", prompt="")
    refused(complete, "unsupported_request", prompt=["a", "b"])
    chat(model="m", messages=task.messages)
    with open(task.ground_truth, "w") as file:
        file.write(f"{base_url} {api_key}")
    chat(model="m", messages=task.messages)  # the third turn is one too many
    chat(model="m", messages=task.messages)
"""
)


def test_what_cannot_be_answered_is_refused_and_a_limit_ends_the_episode(tmp_path):
    """The client's error at the limit is no failure of the episode. Its key is refused once it has ended."""
    with playing(tmp_path, source=REFUSED, max_turns=2) as play:
        episode = play("a<|end|>", "b<|end|>", truth=str(tmp_path / "access"))
        assert (episode.status, episode.reason, episode.counts["turns"]) == ("truncated", "", 2), episode.reason
        assert np.isnan(episode.reward)
        base_url, key = (tmp_path / "access").read_text().split()
        answer = httpx.get(f"{base_url}/models", headers={"Authorization": f"Bearer {key}"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


WAITS = (
    HEAD
    + """
def run(task, base_url, api_key):
    with open(task.ground_truth, "w") as file:
        file.write(f"{base_url} {api_key}\\n")
    while not os.path.exists(task.ground_truth + ".go"):
        time.sleep(0.01)
    openai.OpenAI(base_url=base_url, api_key=api_key).chat.completions.create(model="m", messages=task.messages)
    return 1.0
"""
)


def test_a_request_needs_the_key_of_its_episode(tmp_path):
    with playing(tmp_path, source=WAITS, timeout="20s") as play, ThreadPoolExecutor() as threads:
        files = [tmp_path / "first", tmp_path / "second"]
        playing_both = [threads.submit(play, "a<|end|>", truth=str(file)) for file in files]
        wait_until(lambda: all(file.exists() and file.read_text().endswith("\n") for file in files))
        (url, own), (_, others) = (file.read_text().split() for file in files)
        for headers in ({}, {"Authorization": own}, *({"Authorization": f"Bearer {key}"} for key in ("x", others))):
            for path in ("chat/completions", "completions", "reward"):
                assert httpx.post(f"{url}/{path}", json={}, headers=headers).status_code == 401
            assert httpx.get(f"{url}/models", headers=headers).status_code == 401
        assert httpx.get(f"{url}/models", headers={"Authorization": f"Bearer {own}"}).status_code == 200
        for file in files:
            (tmp_path / f"{file.name}.go").touch()
        assert [each.result().counts["turns"] for each in playing_both] == [1, 1]


HANGS = (
    HEAD
    + """
def run(task, base_url, api_key):
    client = openai.OpenAI(base_url=base_url, api_key=api_key)
    client.chat.completions.create(model="m", messages=task.messages)
    if task.ground_truth == "hang":
        time.sleep(99)
    return 1.0
"""
)


def test_an_agent_that_hangs_costs_its_episode(tmp_path):
    with playing(tmp_path, source=HANGS, timeout="4s") as play:
        hung, calm = play("a<|end|>", truth="hang"), play("a<|end|>")
    assert (hung.status, hung.trajectories, calm.reward) == ("timed_out", (), 1)


AGENT = """
import json, openai, os, subprocess, sys
task = json.load(sys.stdin)
if task["ground_truth"] == "crash":
    sys.exit(3)
open("left", "w").write(str(subprocess.Popen(["sleep", "99"]).pid))
client = openai.OpenAI()
answer = client.chat.completions.create(model="m", messages=task["messages"])
client.post("/reward", cast_to=object, body={"reward": float(answer.choices[0].message.content)})
"""


def test_an_agent_in_a_process_of_its_own_reads_the_task_and_posts_its_reward(tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    with playing(tmp_path, command=[sys.executable, "agent.py"]) as play:
        assert play("7<|end|>").reward == 7
        assert not psutil.pid_exists(int((tmp_path / "left").read_text()))
        crashed = play("7<|end|>", truth="crash")
    assert (crashed.status, crashed.trajectories) == ("environment_failed", ())
    assert crashed.reason.endswith("ended with exit code 3")


def test_a_command_that_is_no_program_is_named(tmp_path):
    from rljob_trainer.errors import EnvironmentFailed

    with (
        pytest.raises(EnvironmentFailed, match=r"spec.environment.command\[0\]: no-such-program is no program here"),
        playing(tmp_path, command=["no-such-program"]),
    ):
        pass
