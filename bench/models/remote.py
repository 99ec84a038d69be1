"""Engines here, or in a process as in a job: vLLM changes classes of transformers in its process."""

import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from rljob_trainer.engines.engine import Completion, EngineSettings, Request
from rljob_trainer.engines.registry import create_engine


class LocalEngine:
    """What a comparison asks of an engine. Raises what the engine raises."""

    def __init__(self, settings: EngineSettings) -> None:
        self._engine = create_engine(settings)

    def call(self, name: str, *arguments: Any) -> Any:
        return getattr(self._engine, name)(*arguments)

    def close(self) -> None:
        self._engine.close()

    def answer(self, requests: Sequence[Request]) -> list[Completion]:
        """All samples of these requests."""
        for request in requests:
            self.call("submit", request)
        made: list[Completion] = []
        while len(made) < sum(len(request.seeds) for request in requests):
            made += self.call("step")
        return made


class RemoteEngine(LocalEngine):
    """The same in a process of its own."""

    def __init__(self, settings: EngineSettings) -> None:
        context = multiprocessing.get_context("forkserver")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, settings), daemon=True)
        self._process.start()
        theirs.close()
        self._answer()

    def call(self, name: str, *arguments: Any) -> Any:
        self._pipe.send((name, arguments))
        return self._answer()

    def close(self) -> None:
        self._process.kill()
        self._process.join()

    def _answer(self) -> Any:
        value, error = self._pipe.recv()
        if error is not None:
            raise error
        return value


def _serve(pipe: Connection, settings: EngineSettings) -> None:
    engine: Any = None
    while True:
        try:
            if engine is None:
                engine = create_engine(settings)
                pipe.send((None, None))
            name, arguments = pipe.recv()
            pipe.send((getattr(engine, name)(*arguments), None))
        except EOFError:
            return
        except Exception as error:  # noqa: BLE001  it travels to the caller
            pipe.send((None, error))
            if engine is None:
                return
