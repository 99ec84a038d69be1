"""Environments in real processes: what users write, and what becomes of code that raises, hangs or crashes."""

import asyncio
import os
import re
import signal
import sys
import threading
import time
from contextlib import nullcontext
from typing import Any

import psutil
import pytest

from rljob_api.v1alpha1 import Environment
from rljob_trainer.attempt.wiring import Wiring
from rljob_trainer.environments import pool
from rljob_trainer.environments.check import environment_errors, program_errors
from rljob_trainer.errors import EnvironmentFailed, InfrastructureError
from tests.rljob_api.example_files import EXAMPLES
from tests.rljob_trainer.chat_templates import TOOLS
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.environments_support import Script, playing, task_of

ROLLOUT = """
from rljob_trainer.environments import Episode

async def rollout(task, policy, bonus=0.0):
    messages = list(task.messages)
    first = await policy.chat(messages)
    ids = list(task.token_ids) + await policy.encode(first["content"] + "!")
    second = await policy.generate(ids)
    assert (task.extra_info, task.data_source, policy.sample) == ({"level": 3}, "game", 0)
    return Episode(reward=bonus + (second.text == task.ground_truth), metrics={"length": len(second.token_ids)})
"""

TOOLBOX = '''
import asyncio

def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: The first number.
    """
    return a + b

async def fail() -> str:
    """Fail."""
    raise LookupError("no such thing")

def find() -> str:
    """Find."""
    return next(each for each in () if each)

def leave() -> str:
    """Leave."""
    raise SystemExit(2)

async def give_up() -> str:
    """Give up."""
    raise asyncio.CancelledError
'''


def call(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call><|im_end|>'


def test_a_rollout_talks_in_messages_and_in_tokens(tmp_path):
    with playing(tmp_path, source=ROLLOUT, arguments={"bonus": 0.5}) as play:
        episode = play("one<|end|>", "two<|end|>", truth="two")
    assert (episode.reward, episode.status) == (1.5, "finished")
    assert episode.counts == {"turns": 2, "splits": 1, "length": 4}
    first, second = (play.tokenized.text(part.token_ids.tolist()) for part in episode.trajectories)
    assert first == "<|user|>Play<|assistant|>one<|end|>"
    assert second == "<|user|>Play<|assistant|>one!two<|end|>", "those tokens are the rollout's own"


def test_a_class_steps_until_it_is_done_and_each_step_rewards_its_turn(tmp_path):
    """The example."""
    prompt = [{"role": "user", "content": "Guess"}]
    with playing(EXAMPLES / "guess", path="guess.py", max_turns=2) as play:
        won, lost, at_once, none = (
            play(*texts, truth="3", prompt=prompt)
            for texts in (("2<|end|>", "3<|end|>"), ("2<|end|>", "1<|end|>"), ("3<|end|>",), ("x<|end|>",))
        )
    (EXAMPLES / "guess" / "environment.log").unlink()
    (part,) = won.trajectories
    assert play.tokenized.text(part.token_ids.tolist()) == (
        "<|user|>Guess<|assistant|>2<|end|><|user|>higher<|assistant|>3<|end|>"
    )
    rewards = [each.turn_rewards.tolist() for each in (won, lost, at_once, none) if each.turn_rewards is not None]
    assert rewards == [[0, 1], [0, 0], [1], [0]]
    assert [each.reward for each in (won, lost, at_once, none)] == [1, 0, 1, 0]
    assert [each.status for each in (won, lost, at_once)] == ["finished", "truncated", "finished"]  # at maxTurns


def test_tools_are_called_until_an_answer_calls_none_and_their_errors_are_observations(tmp_path):
    texts = (
        call("add", '{"a": 2}'),
        call("add", '{"c": 2}') + call("fail", "{}"),
        call("nothing", "{}"),
        call("find", "{}") + call("leave", "{}") + call("give_up", "{}"),
        "3<|im_end|>",
    )
    with playing(
        tmp_path, source=TOOLBOX, tools=["add", "fail", "find", "leave", "give_up"], template=TOOLS, tokens=2000
    ) as play:
        episode = play(*texts)
    (part,) = episode.trajectories
    text = play.tokenized.text(part.token_ids.tolist())
    assert (
        '"properties": {"a": {"type": "integer", "description": "The first number."}, "b": {"type": "integer"}}' in text
    )
    assert "<|im_start|>tool\n3<|im_end|>" in text
    assert "<|im_start|>tool\nError: TypeError: missing a required argument: 'a'<|im_end|>" in text
    assert "<|im_start|>tool\nError: LookupError: no such thing<|im_end|>" in text
    assert (
        "<|im_start|>tool\nError: there is no tool 'nothing'; there is add, fail, find, leave, give_up<|im_end|>"
        in text
    )
    for error in ("RuntimeError: raised StopIteration", "SystemExit: 2", "RuntimeError: raised CancelledError"):
        assert f"<|im_start|>tool\nError: {error}<|im_end|>" in text
    assert episode.counts == {"turns": 5, "splits": 0, "tool_calls": 7, "tool_errors": 6}


def test_an_interpreter_of_the_users_needs_none_of_our_packages(tmp_path):
    """This one sees no site-packages."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    source = ROLLOUT + "\nimport sys\nassert not any('site-packages' in path for path in sys.path), sys.path\n"
    source += "import importlib.util\nassert importlib.util.find_spec('numpy') is None\n"
    with playing(tmp_path, source=source, python="./python") as play:
        assert play("one<|end|>", "two<|end|>", truth="two").reward == 1


CANNOT_BE_LOADED: list[tuple[dict[str, Any], str, str]] = [
    ({"source": "def rollout(task, policy): pass"}, "entry", "rollout is not async"),
    ({"source": "x = 1"}, "entry", "the code has no .*'rollout'"),
    ({"source": "class Environment:\n    def reset(self, task): pass"}, "entry", "no method step"),
    ({"source": "class Environment:\n def reset(self): 0\n def step(self, a): 0"}, "entry", r"reset\(self, task\)"),
    (
        {
            "source": "class Environment:\n def __init__(self): 0\n def reset(self, t): 0\n def step(self, a): 0",
            "arguments": {"malus": 1},
        },
        "arguments",
        "unexpected keyword argument 'malus'",
    ),
    (
        {"source": "class Environment:\n def reset(self, t): 0\n def step(self, a): 0", "arguments": {"malus": 1}},
        "arguments",
        "unexpected keyword argument 'malus'",
    ),
    ({"source": "def run(task, base_url, api_key, more): 0"}, "entry", "missing a required argument: 'more'"),
    ({"source": "def f(*a: int):\n    'F.'", "tools": ["f"]}, r"tools\[0\]", "has no name in a call"),
    ({"source": "async def rollout(task): 0"}, "entry", r"too many .* it is called as rollout\(task, policy\)"),
    ({"source": ROLLOUT, "arguments": {"malus": 1}}, "arguments", "unexpected keyword argument 'malus'"),
    ({"source": ROLLOUT + "1 / 0"}, "source", "ZeroDivisionError"),
    ({"module": "no_such_module"}, "module", "install it, or correct the name"),
    ({"source": TOOLBOX, "tools": ["add", "sub"]}, r"tools\[1\]", "no function 'sub'"),
    ({"source": "def f(a: int): pass", "tools": ["f"]}, r"tools\[0\]", "no docstring"),
    ({"source": "def f(a):\n    'F.'", "tools": ["f"]}, r"tools\[0\]", "parameter a of tool f has no type hint"),
    ({"source": "def f(a: set):\n    'F.'", "tools": ["f"]}, r"tools\[0\]", "a type that JSON lacks"),
    ({"source": ROLLOUT, "python": "/no/such/python"}, "python", "cannot be run"),
    ({"source": ROLLOUT + "import os; os._exit(3)"}, "", "exit code 3"),
]
ONLY_WHEN_IT_RUNS = {
    "ZeroDivisionError",
    "install it, or correct the name",
    "a type that JSON lacks",
    "cannot be run",
    "exit code 3",
}


@pytest.mark.parametrize(("fields", "field", "message"), CANNOT_BE_LOADED)
def test_code_that_cannot_be_loaded_is_named_with_its_field(fields, field, message, tmp_path):
    with (
        pytest.raises(EnvironmentFailed, match=rf"spec.environment\.?{field}: .*{message}"),
        playing(tmp_path, **fields),
    ):
        pass


def test_what_the_text_shows_is_said_before_and_when_the_code_runs(tmp_path):
    """By the same words."""
    for fields, field, message in CANNOT_BE_LOADED:
        found = list(environment_errors(Environment(**fields), tmp_path))
        if message in ONLY_WHEN_IT_RUNS:
            assert found == [], fields
        else:
            (error,) = found
            assert re.match(rf"spec.environment\.?{field}: .*{message}", f"{error.field}: {error.message}"), fields


@pytest.mark.parametrize(
    "source",
    [
        "from somewhere import wrap\n@wrap\ndef rollout(): pass",
        "def rollout(): pass\nrollout = make(rollout)",
        "if True:\n    def rollout(): pass\nelse:\n    async def rollout(task, policy): 0",
        "def rollout(): pass\nglobals()['rollout'] = 1",
        "def rollout(): pass\nfrom somewhere import *",
        "def f():\n    global rollout\n    rollout = 1\ndef rollout(): pass",
        "from base import Base\nclass Environment(Base):\n    def reset(self, task): 0",
        "class Environment:\n  @staticmethod\n  def reset(task): 0\n  step = make()\n  def __new__(c, **k): 0",
        "async def rollout(task, policy, /, *, malus=1, **others): 0",
        "async def rollout(*given, **others): 0",
        "def rollout(): pass\nrollout.__wrapped__ = other",
        "def run(task, *, base_url, api_key, malus): return 1",
    ],
)
def test_what_the_text_does_not_show_is_left_to_the_process(source, tmp_path):
    assert list(environment_errors(Environment(source=source, arguments={"malus": 1}), tmp_path)) == []


@pytest.mark.parametrize(("path", "refused"), [("game.py", True), ("on_a_worker.py", False)])
def test_the_driver_reads_the_code_before_anything_else(path, refused, tmp_path):
    (tmp_path / "game.py").write_text("def rollout(task, policy): 0")
    wiring = Wiring.__new__(Wiring)  # without Ray
    wiring._base_dir, wiring._device = tmp_path, "cpu"
    wiring._spec = make_spec(environment={"path": path}, rollout={"engine": "hf"})
    with pytest.raises(EnvironmentFailed, match="rollout is not async") if refused else nullcontext():
        wiring._check_arguments()


def test_programs_that_are_not_here_are_named(tmp_path):
    servers: Any = [{"name": "a", "command": ["./serve", "--fast"]}, {"name": "b", "command": ["no-such-server"]}]
    errors = list(program_errors(Environment(mcp_servers=servers), tmp_path))
    assert [error.field for error in errors] == [
        f"spec.environment.mcpServers[{index}].command[0]" for index in range(2)
    ]  # fmt: skip
    assert "no-such-server is no program here: install it, or correct the name" in str(errors[1])
    (error,) = program_errors(Environment(command=["no-such-agent"]), tmp_path)
    assert error.field == "spec.environment.command[0]"
    (tmp_path / "serve").write_text("#!/bin/sh\n")
    (tmp_path / "serve").chmod(0o755)
    assert len(list(program_errors(Environment(mcp_servers=servers), tmp_path))) == 1
    assert list(program_errors(Environment(command=["sh"]), tmp_path)) == []


def test_what_can_be_seen_without_running_code_is_seen_early(tmp_path):
    def found(**fields):
        return [(error.field, error.message) for error in environment_errors(Environment(**fields), tmp_path)]

    assert found(source=ROLLOUT) == found(source=TOOLBOX, tools=["add"]) == found(module="somewhere.else") == []
    ((field, message),) = found(source="x = 1")
    assert (field, "no 'rollout' and no 'Environment'" in message) == ("spec.environment.entry", True)
    assert [field for field, _ in found(source=TOOLBOX, tools=["sub"], arguments={"a": 1})] == [
        "spec.environment.arguments", "spec.environment.tools[0]",
    ]  # fmt: skip
    assert found(path="missing.py")[0][0] == "spec.environment.path"
    assert found(source="def f(:")[0][0] == "spec.environment.source"


# ---- failures

FAILS = """
import os, pathlib, signal, time, asyncio

async def rollout(task, policy, how="", times=9, folder=""):
    await policy.chat(task.messages)
    tries = pathlib.Path(folder) / "tries"
    with tries.open("a") as file:
        file.write("x")
    if len(tries.read_text()) <= times:
        if how == "raise":
            raise ValueError("broken " + task.ground_truth)
        if how == "cancel":
            raise asyncio.CancelledError
        if how == "hang":
            await asyncio.sleep(99)
        if how == "hang hard":
            time.sleep(99)
        if how == "crash":
            os._exit(5)
        if how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if how == "answer":
            return "much"
    return 1.0
"""


@pytest.mark.parametrize(
    ("how", "tries", "status", "reason"),
    [
        ("raise", 2, "environment_failed", "raised ValueError: broken truth (line 11 of <spec.environment.source>)"),
        (
            "cancel",
            2,
            "environment_failed",
            "raised RuntimeError: raised CancelledError (line 13 of <spec.environment.source>)",
        ),
        ("hang", 2, "timed_out", "did not return within environment.timeout"),
        ("hang hard", 2, "timed_out", "did not return within environment.timeout"),
        ("crash", 3, "environment_failed", "ended its process with exit code 5"),
        ("stop", 3, "environment_failed", "stopped its process"),
        ("answer", 2, "environment_failed", "raised ValueError: the reward is 'much', not a number"),
    ],
)
def test_a_failure_costs_its_episode_after_a_second_try(how, tries, status, reason, tmp_path):
    arguments = {"how": how, "folder": str(tmp_path)}
    with playing(tmp_path, source=FAILS, arguments=arguments, timeout="400ms") as play:
        episode = play("a<|end|>", truth="truth")
        assert (episode.status, episode.trajectories, episode.reason) == (status, (), reason)
        assert len((tmp_path / "tries").read_text()) == tries
        again = play("a<|end|>", truth="truth") if how == "raise" else None
        assert again is None or again.status == status, "the pool plays the next episode"


def test_processes_order_sets_alike(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    source = (
        "async def rollout(task, policy):\n    await policy.chat([{'role': 'user', 'content': str(set('abcdefgh'))}])"
    )
    prompts = set()
    for _ in range(3):
        with playing(tmp_path, source=source) as play:
            policy = Script(play.tokenized, "a<|end|>")
            play.of(policy)
            prompts.add(tuple(policy.asked[0].tolist()))
    assert len(prompts) == 1


@pytest.mark.parametrize("how", ["raise", "hang hard", "crash"])
def test_the_second_try_is_the_same_episode(how, tmp_path):
    arguments = {"how": how, "folder": str(tmp_path), "times": 1}
    with playing(tmp_path, source=FAILS, arguments=arguments, timeout="400ms") as play:
        policy = Script(play.tokenized, "a<|end|>")
        assert play.of(policy, truth="truth").reward == 1
        assert len(policy.asked) == 2
        assert policy.asked[0].tolist() == policy.asked[1].tolist()


def test_a_job_may_end_with_an_episode_that_fails(tmp_path):
    arguments = {"how": "raise", "folder": str(tmp_path)}
    match = "spec.environment: it raised ValueError.*, twice, for prompt 0/0/0, sample 0"
    failing = playing(tmp_path, source=FAILS, arguments=arguments, on_error="fail")
    with failing as play, pytest.raises(EnvironmentFailed, match=match):
        play("a<|end|>", truth="truth")


LEAVES = """
import os, pathlib

folder = pathlib.Path(os.environ["FOLDER"])
if (folder / "gone").exists():
    if (folder / "back").exists():
        (folder / "gone").unlink()
    raise ConnectionError("no server")

async def rollout(task, policy):
    await policy.chat(task.messages)
    if not (folder / "left").exists():
        (folder / "left").touch()
        (folder / "gone").touch()
        os._exit(1)
    return 1.0
"""


def test_code_that_loads_no_more_is_no_fault_of_the_job(tmp_path, monkeypatch):
    """What it needs, such as a server, is away for a while, or for good."""
    monkeypatch.setattr(pool, "_LOAD_AGAIN_SECONDS", (0.0,))
    monkeypatch.setenv("FOLDER", str(tmp_path))
    (tmp_path / "back").touch()
    with playing(tmp_path, source=LEAVES, env=["FOLDER"]) as play:
        assert play("a<|end|>").reward == 1
        (tmp_path / "back").unlink()
        (tmp_path / "left").unlink()
        with pytest.raises(InfrastructureError, match=r"cannot be replaced: .*ConnectionError: no server"):
            play("a<|end|>")


WAITS = """
import pathlib, time

class Environment:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def reset(self, task):
        pass

    def step(self, answer):
        (self.folder / answer).touch()
        while not (self.folder / "go").exists():
            time.sleep(0.01)
        return "", 1.0, True
"""


@pytest.mark.parametrize("killed", [False, True])
def test_one_process_plays_episodes_side_by_side_and_each_survives_its_death(killed, tmp_path):
    episodes = []
    before = {each.pid for each in psutil.Process().children()}
    with playing(tmp_path, source=WAITS, arguments={"folder": str(tmp_path)}) as play:
        threads = [
            threading.Thread(target=lambda n=n: episodes.append(play(f"{n}<|end|>")), daemon=True) for n in range(8)
        ]
        for thread in threads:
            thread.start()
        _wait(lambda: len([path for path in tmp_path.iterdir() if path.name.isdigit()]) == 8)
        (child,) = (each for each in psutil.Process().children() if each.pid not in before)
        if killed:
            os.kill(child.pid, signal.SIGKILL)
        (tmp_path / "go").touch()
        for thread in threads:
            thread.join(30)
    assert [episode.reward for episode in episodes] == [1.0] * 8
    assert not psutil.pid_exists(child.pid)


def _wait(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


TOGETHER = """
import asyncio

waiting, everyone = 0, asyncio.Event()

async def rollout(task, policy):
    global waiting
    await policy.chat(task.messages)
    waiting += 1
    if waiting == 200:
        everyone.set()
    await everyone.wait()  # none ends before all are here
    return 1.0
"""


@pytest.mark.slow
def test_one_process_carries_200_idle_episodes(tmp_path):
    with playing(tmp_path, source=TOGETHER, processes=1, timeout="100s") as play:

        async def all_at_once():
            tasks = [task_of(play.tokenized, number=number) for number in range(200)]
            return await asyncio.gather(
                *(play.pool.rollout(task, Script(play.tokenized, "a<|end|>")) for task in tasks)
            )

        episodes = play.episodes.run(all_at_once())
        processes = len(play.pool._living)
    assert [episode.reward for episode in episodes] == [1.0] * 200
    assert processes == 1
