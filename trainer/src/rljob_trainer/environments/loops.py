"""Rollouts of classes with reset and step, and of tools. Runs in environment processes: needs only Python 3.11."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from rljob_trainer.environments.api import Episode, EpisodeOver, Policy, Task
from rljob_trainer.environments.tools import Tool, ToolBroken, ToolRefused


async def play_steps(make: Callable[[], Any], task: Task, policy: Policy) -> Episode:
    """reset, then answers and steps until one is done. The rewards of the steps are those of the turns."""
    environment = await called(make)
    rewards: list[float] = []
    try:
        messages = list(task.messages)
        if (first := _text(await called(environment.reset, task), "reset")) is not None:
            messages.append({"role": "user", "content": first})
        with suppress(EpisodeOver):
            while True:  # chat raises EpisodeOver at a limit, so that the episode counts as truncated
                answer = await policy.chat(messages)
                observation, reward, done = _stepped(await called(environment.step, answer["content"]))
                rewards.append(reward)
                if done:
                    break
                messages += [answer, {"role": "user", "content": observation}]
    finally:
        if callable(getattr(environment, "close", None)):
            await called(environment.close)
    return Episode(turn_rewards=rewards)


async def play_tools(tools: Sequence[Tool], task: Task, policy: Policy) -> Episode:
    """Answers and calls of tools until an answer calls none. It gives no reward."""
    by_name = {tool.name: tool for tool in tools}
    schemas = [tool.schema for tool in tools]
    messages = list(task.messages)
    calls = errors = 0
    with suppress(EpisodeOver):
        while True:
            answer = await policy.chat(messages, schemas)
            messages.append(answer)
            asked = answer.get("tool_calls") or ()
            for call in asked:
                text, failed = await _observed(by_name, call["function"])
                calls, errors = calls + 1, errors + failed
                name = call["function"]["name"]
                messages.append({"role": "tool", "tool_call_id": call["id"], "name": name, "content": text})
            if not asked:
                break
    return Episode(metrics={"tool_calls": calls, "tool_errors": errors})


async def _observed(tools: dict[str, Tool], function: dict[str, Any]) -> tuple[str, bool]:
    """What the policy reads of a call, and whether it failed: an error is an observation."""
    tool = tools.get(function["name"])
    if tool is None:
        return f"Error: there is no tool {function['name']!r}; there is {', '.join(tools)}", True
    try:
        return str(await called(tool.function, **tool.checked(function["arguments"]))), False
    except ToolBroken:
        raise
    except ToolRefused as error:
        return f"Error: {error}", True
    except (Exception, SystemExit) as error:  # noqa: BLE001  a tool may raise anything
        return f"Error: {type(error).__name__}: {error}", True


async def called(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Its value; in a thread unless it is async."""
    if inspect.iscoroutinefunction(function):
        return await ended(function(*args, **kwargs))
    value = await asyncio.to_thread(_without_stop, function, *args, **kwargs)
    return await ended(value) if inspect.isawaitable(value) else value


async def ended(code: Awaitable[Any]) -> Any:
    """Its value. That the code cancelled itself is an error of it: who waits for its end would never hear of it."""
    try:
        return await code
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():  # the pool ends the episode
            raise
        raise RuntimeError("raised CancelledError").with_traceback(error.__traceback__) from error


def _without_stop(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """A future takes no StopIteration: who waits for it would never hear of it."""
    try:
        return function(*args, **kwargs)
    except StopIteration as error:
        raise RuntimeError("raised StopIteration").with_traceback(error.__traceback__) from error


def _text(value: Any, method: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise TypeError(f"{method} returned {value!r:.80}, not text")


def _stepped(value: Any) -> tuple[str, float, bool]:
    if not (isinstance(value, tuple | list) and len(value) == 3):
        raise TypeError(f"step returned {value!r:.80}, not (observation, reward, done)")
    observation, reward, done = value
    return _text(observation, "step") or "", reward, bool(done)
