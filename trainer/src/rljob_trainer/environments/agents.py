"""Rollouts of agents that know no more than an OpenAI-compatible endpoint. Needs only Python 3.11.

def run(task, base_url, api_key):
    client = openai.OpenAI(base_url=base_url, api_key=api_key)
    answer = client.chat.completions.create(model="policy", messages=task.messages)
    return float(answer.choices[0].message.content == task.ground_truth)
"""

import asyncio
import inspect
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rljob_trainer.environments.api import Episode, Policy, Task
from rljob_trainer.environments.loops import called

PARAMETERS = ("base_url", "api_key")


def is_agent(signature: inspect.Signature) -> bool:
    """Whether a function is called with the endpoint, not with the policy."""
    return set(PARAMETERS) <= set(signature.parameters)


async def play_agent(function: Callable[..., Any], task: Task, policy: Policy) -> Any:
    """The function's reward, Episode, None, or {reward, and other numbers to log}."""
    base_url, api_key = await policy.endpoint()
    returned = await called(function, task, base_url=base_url, api_key=api_key)
    if not isinstance(returned, Mapping):
        return returned
    metrics = dict(returned)
    return Episode(metrics.pop("reward", None), metrics=metrics)


async def play_command(command: Sequence[str], folder: Path, task: Task, policy: Policy) -> Episode:
    """A process for each episode: the task as JSON on its standard input, the endpoint in its variables.

    Raises RuntimeError if it ends with another exit code than 0.
    """
    base_url, api_key = await policy.endpoint()
    variables = {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": api_key}
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, cwd=folder, env={**os.environ, **variables}, start_new_session=True
    )
    try:
        row = {**task._asdict(), "sample": policy.sample}
        await process.communicate(json.dumps(row, default=str).encode())
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with what it left behind
        await process.wait()
        await asyncio.to_thread(_reap, process.pid)
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with exit code {process.returncode}")
    return Episode()


def _reap(group: int) -> None:
    """Wait for killed processes of a group that became children of this one."""
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-group, 0)
