"""A reverse proxy before the API server that records every request and injects faults."""

import asyncio
import base64
import ssl
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from threading import Thread
from typing import Any, Self

import yaml
from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web

from e2e.cluster.access import Access
from e2e.cluster.layout import HOST
from e2e.cluster.proxy.call import Call, parse
from e2e.cluster.proxy.exchange import Exchange
from e2e.cluster.proxy.faults import Fault

LARGEST_BODY = 16 * 2**20

_NOT_OURS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that aiohttp would add where the caller sent none."""


class Proxy:
    """Plain HTTP on a port of this machine, served by a thread of its own while the `with` block lasts.

    It comes to the API server with the credentials of `upstream`: a client certificate, or a token where the caller
    sends none of his own.

    calls: every request, in the order of arrival.
    faults: those in force; a test adds and removes them at any time. The first that strikes decides.

    with Proxy(cluster) as proxy:
        proxy.faults.append(Fault(answer(409), verbs={"patch"}, resource="rljobs/status", nth=2))
        run_operator(proxy.access(tmp_path / "kubeconfig"))
        assert [call.status for call in proxy.calls if call.writes] == [...]
    """

    def __init__(self, upstream: Access) -> None:
        settings = upstream.settings()
        self._cluster: dict[str, Any] = settings["clusters"][0]["cluster"]
        self._user: dict[str, Any] = settings["users"][0]["user"] if settings["users"] else {}
        self._namespace = settings["contexts"][0]["context"].get("namespace", "default")
        self._cache = upstream.cache
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self.calls: list[Call] = []
        self.faults: list[Fault] = []
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def access(self, target: Path) -> Access:
        """Through the proxy, by a new kubeconfig."""
        context = {"cluster": "proxy", "user": "proxy", "namespace": self._namespace}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "proxy", "cluster": {"server": self.url}}],
            "users": [{"name": "proxy", "user": {}}],
            "contexts": [{"name": "proxy", "context": context}],
            "current-context": "proxy",
        }
        target.write_text(yaml.safe_dump(config))
        return Access(target, cache=self._cache)

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _open(self) -> None:
        connector = TCPConnector(ssl=self._trust(), limit=0)
        self._session = ClientSession(
            connector=connector,
            auto_decompress=False,
            timeout=ClientTimeout(total=None),
            skip_auto_headers=_NOT_OURS,
        )
        app = web.Application(client_max_size=LARGEST_BODY)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, 0)
        await site.start()
        self.url = f"http://{HOST}:{self._runner.addresses[0][1]}"

    async def _close(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        call = parse(request.method, request.path, request.query)
        self.calls.append(call)
        exchange = Exchange(request, call, self._session, self._cluster["server"], self._user.get("token"))
        striking = [fault for fault in tuple(self.faults) if fault.strikes(call)]
        call.injected = bool(striking)
        try:
            return await (striking[0].action(exchange) if striking else exchange.forward())
        except (ClientError, ConnectionError):  # one of the two ends left
            return exchange.drop()

    def _trust(self) -> ssl.SSLContext:
        authority = base64.b64decode(self._cluster["certificate-authority-data"]).decode()
        trust = ssl.create_default_context(cadata=authority)
        if "client-certificate-data" in self._user:
            with tempfile.NamedTemporaryFile() as file:  # ssl reads a certificate from a file only
                for part in ("client-certificate-data", "client-key-data"):
                    file.write(base64.b64decode(self._user[part]))
                file.flush()
                trust.load_cert_chain(file.name)
        return trust
