"""Head pods of many clusters behind one port: Ray's Jobs API and the agent's, with drivers that only pretend.

    with PlayedHeads() as heads:
        head = heads.add("team-a", "gsm8k-grpo", ray_token="r", agent_token="a")
        ...                                     # the operator, with heads.template as its head address, submits
        head.driver().start()                   # see played_driver for what drivers can be made to do
        heads.disturb(head, unreachable, "agent")

    python -m tests.rljob_operator.played_head --port 7000 --steps 100 --seconds 0.5     heads for whoever asks

Those heads know no job's file: each of their drivers takes --steps steps, whatever the job's training.steps says.

test_head_against_ray and test_head_against_agent compare their answers with those of the real servers.
"""

import argparse
import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from aiohttp import web

from tests.rljob_operator.played_driver import Head, Script, train
from tests.rljob_operator.played_routes import HEAD, ROUTES, Handler

Fault = Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]

BASES = {"ray": "/{namespace}/{service:[^/]+:8265}", "agent": "/{namespace}/{service:[^/]+:8900}"}


async def unreachable(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The connection ends without an answer."""
    return _hang_up(request)


async def answer_lost(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The server does what it is asked; the caller never learns of it."""
    await handler(request)
    return _hang_up(request)


def slow(seconds: float) -> Fault:
    async def fault(request: web.Request, handler: Handler) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return await handler(request)

    return fault


def answers(status: int, text: str, content_type: str = "text/plain") -> Fault:
    """Somebody else answers: a proxy, or a server of another version."""

    async def fault(request: web.Request, handler: Handler) -> web.StreamResponse:
        return web.Response(status=status, text=text, content_type=content_type)

    return fault


class PlayedHeads:
    """The server, in a thread of its own. create: makes the head of a cluster that nobody added; else there is none."""

    def __init__(self, port: int = 0, create: Callable[[], Head] | None = None) -> None:
        self._port, self._create = port, create
        self._heads: dict[tuple[str, str], Head] = {}
        self._faults: dict[tuple[Head, str], Fault] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="played-heads", daemon=True)

    @property
    def template(self) -> str:
        """What the operator's setting of the heads' address has to be."""
        return f"http://127.0.0.1:{self._port}/{{namespace}}/{{service}}:{{port}}"

    def add(
        self, namespace: str, cluster: str, *, script: Script | None = None, ray_token: str | None = None,
        agent_token: str | None = None,
    ) -> Head:  # fmt: skip
        """A head that is reachable from now on. script: what its drivers do; None leaves that to the test."""
        head = self._heads[namespace, cluster] = Head(script, ray_token, agent_token)
        return head

    def head(self, namespace: str, cluster: str) -> Head:
        return self._heads[namespace, cluster]

    def disturb(self, head: Head, fault: Fault, *servers: str) -> None:
        """servers: "ray", "agent"; both, if none is named."""
        self._faults |= {(head, server): fault for server in servers or BASES}

    def heal(self, head: Head) -> None:
        for server in BASES:
            self._faults.pop((head, server), None)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._leave(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _listen(self) -> None:
        self._runner = web.AppRunner(self._application(), shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def _leave(self) -> None:
        await self._runner.cleanup()
        scripts = [driver.task for head in self._heads.values() for driver in head.drivers if driver.task]
        late = asyncio.all_tasks() - {asyncio.current_task()}  # scripts, and slow answers that nobody waits for
        for task in late:
            task.cancel()
        ends = await asyncio.gather(*late, *scripts, return_exceptions=True)
        for failed in (end for end in ends if isinstance(end, Exception)):
            raise failed

    def _application(self) -> web.Application:
        app = web.Application()
        for server, routes in ROUTES.items():
            for method, path, handler in routes:
                app.router.add_route(method, BASES[server] + path, self._serve(server, handler))
        return app

    def _serve(self, server: str, handler: Handler) -> Handler:
        async def serve(request: web.Request) -> web.StreamResponse:
            cluster, _, _ = request.match_info["service"].rpartition("-head-svc:")
            name = request.match_info["namespace"], cluster
            if name not in self._heads and self._create is not None:
                self._heads[name] = self._create()
            head = self._heads.get(name)
            if head is None:
                return _hang_up(request)
            request[HEAD] = head
            fault = self._faults.get((head, server))
            return await (fault(request, handler) if fault else handler(request))

        return serve


def _hang_up(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10, help="of every driver, whatever its job's training.steps says")
    parser.add_argument("--seconds", type=float, default=0.5, help="of one step")
    arguments = parser.parse_args()
    script = train(arguments.steps, seconds=arguments.seconds)
    with PlayedHeads(arguments.port, create=lambda: Head(script)) as heads:
        print(heads.template, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
