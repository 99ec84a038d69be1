"""One request on its way through the proxy."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import ClientResponse, ClientSession, hdrs, web
from yarl import URL

from e2e.cluster.proxy.call import Call

_HOP_BY_HOP = {"connection", "host", "keep-alive", "transfer-encoding", "upgrade"}
"""Headers of one connection, in lower case."""


@dataclass(frozen=True)
class Exchange:
    request: web.Request
    call: Call
    session: ClientSession
    server: str
    token: str | None

    async def forward(self, lines: int | None = None) -> web.StreamResponse:
        """Ask the API server and pass on what it says as it comes.

        lines: of the answer, after which the connection breaks; an event of a watch is one, but in protobuf.
        """
        async with self._ask() as upstream:
            answer = web.StreamResponse(status=upstream.status, headers=_end_to_end(upstream.headers))
            if lines == 0:
                return self.drop()
            await answer.prepare(self.request)
            if lines is None:
                async for chunk in upstream.content.iter_any():
                    await answer.write(chunk)
                await answer.write_eof()
                return answer
            for _ in range(lines):
                await answer.write(await upstream.content.readline())
            return self.drop()

    async def send(self) -> None:
        """Ask the API server, and keep what it says."""
        async with self._ask() as upstream:
            await upstream.read()

    @asynccontextmanager
    async def _ask(self) -> AsyncIterator[ClientResponse]:
        url = URL(f"{self.server}{self.request.raw_path}", encoded=True)
        headers = _end_to_end(self.request.headers)
        if self.token is not None and hdrs.AUTHORIZATION not in self.request.headers:
            headers[hdrs.AUTHORIZATION] = f"Bearer {self.token}"
        body = await self.request.read()
        async with self.session.request(self.request.method, url, headers=headers, data=body or None) as upstream:
            self.call.status = upstream.status
            yield upstream

    def drop(self) -> web.StreamResponse:
        """Break the client's connection."""
        if self.request.transport is not None:
            self.request.transport.abort()
        return web.Response()


def _end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}
