"""An environment process: python -m rljob_trainer.environments.child FD PARENT_PID. Needs only Python 3.11.

Plays many episodes at a time, each an asyncio task. A method that is not async runs in a thread, so that one episode
that waits does not hold up others. The process ends with the thread that started it.
"""

import asyncio
import ctypes
import io
import math
import os
import signal
import socket
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from rljob_trainer.environments.api import Episode, EpisodeOver, Policy, Task
from rljob_trainer.environments.entry import Rollout, load_rollout
from rljob_trainer.environments.loops import ended
from rljob_trainer.environments.tools import ConnectionLost
from rljob_trainer.environments.wire import pack_json, read_plain
from rljob_trainer.rewards.code import describe
from rljob_trainer.rewards.load import LoadError
from rljob_trainer.rewards.private_imports import public, register_again

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_THREADS = 1024
_LOST = 75  # EX_TEMPFAIL
_LARGEST = 1e30  # finite in float32


def main() -> None:
    fd, parent = int(sys.argv[1]), int(sys.argv[2])
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what its children leave behind stays below it, where the pool finds it
    if os.getppid() != parent:  # the parent died before prctl
        return
    del sys.argv[1:]  # the user's code may parse it
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
    with suppress(asyncio.IncompleteReadError, ConnectionError):  # the pool ended
        asyncio.run(_serve(fd))
    os._exit(0)  # threads of the user's code may hang


async def _serve(fd: int) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "environment"))
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=fd))
    (setup,) = await read_plain(reader)
    try:
        rollout = await load_rollout(setup)
    except LoadError as error:
        writer.write(pack_json("unusable", *error.failure))
        await writer.drain()
        return
    writer.write(pack_json("loaded"))
    await _Plays(rollout, writer).serve(reader)


class _Plays:
    """The episodes that this process plays, by number."""

    def __init__(self, rollout: Rollout, writer: asyncio.StreamWriter) -> None:
        self._rollout, self._writer = rollout, writer
        self._playing: dict[int, asyncio.Task[None]] = {}
        self._calls: dict[tuple[int, int], asyncio.Future[Any]] = {}
        self._count = 0

    async def serve(self, reader: asyncio.StreamReader) -> None:
        while True:
            match await read_plain(reader):
                case "play", number, task, sample:
                    self._playing[number] = asyncio.create_task(self._play(number, Task(*task), sample))
                case "answer", number, call, value:
                    self._settle(number, call).set_result(value)
                case "refuse", number, call, kind, text:
                    error = EpisodeOver(text) if kind == "over" else ValueError(text)
                    self._settle(number, call).set_exception(error)
                case "cancel", number:
                    if (playing := self._playing.get(number)) is not None:
                        playing.cancel()

    def _settle(self, number: int, call: int) -> "asyncio.Future[Any]":
        future = self._calls.pop((number, call), None)
        gone = future is None or future.done()
        return asyncio.get_running_loop().create_future() if gone or future is None else future

    async def _play(self, number: int, task: Task, sample: int) -> None:
        async def ask(method: str, argument: Any) -> Any:
            self._count += 1
            call = self._count
            data = pack_json("call", number, call, method, argument)  # raises in the user's code
            future = self._calls[number, call] = asyncio.get_running_loop().create_future()
            self._writer.write(data)
            return await future

        try:
            message = pack_json("end", number, *_checked(await ended(self._rollout(task, Policy(sample, ask)))))
        except asyncio.CancelledError:
            raise
        except EpisodeOver:
            message = pack_json("end", number, None, None, {})
        except ConnectionLost as error:
            print(f"ending this process: {error}", file=sys.stderr, flush=True)
            os._exit(_LOST)
        except BaseException as error:  # noqa: BLE001  every error of the user's code is reported
            message = pack_json("raised", number, f"raised {public(describe(error))}")
        finally:
            self._playing.pop(number, None)
        self._writer.write(message)


def _checked(returned: Any) -> tuple[float | None, list[float] | None, dict[str, float]]:
    """Reward, rewards of turns and metrics. Raises ValueError for what is none of that."""
    episode = returned if isinstance(returned, Episode) else Episode(returned)
    turns = (
        None if episode.turn_rewards is None else [_number(each, "a turn's reward") for each in episode.turn_rewards]
    )
    reward = sum(turns) if episode.reward is None and turns is not None else episode.reward
    if not isinstance(episode.metrics, Mapping):
        raise TypeError(f"metrics are {episode.metrics!r:.80}, not a mapping of names to numbers")
    metrics = {str(name): _number(value, f"metric {name}") for name, value in episode.metrics.items()}
    return (None if reward is None else _number(reward, "the reward")), turns, metrics


def _number(value: Any, called: str) -> float:
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise ValueError(f"{called} is {value!r:.80}, not a number")
    number = float(value)
    if not (math.isfinite(number) and abs(number) <= _LARGEST):
        raise ValueError(f"{called} is {number}")
    return number


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":  # a process that multiprocessing spawned from the user's code
    register_again()
