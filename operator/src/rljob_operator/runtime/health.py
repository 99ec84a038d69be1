"""Health and metrics of the operator, over plain HTTP.

    GET /healthz    200, or 503 with the names of the checks that fail: restart this process
    GET /readyz     the same: this replica is not ready
    GET /metrics    Prometheus

All answers come from the loop that does the work: if that hangs, there is no answer.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

Checks = Mapping[str, Callable[[], bool]]
"""By name. Each returns at once whether all is well."""


class CannotListen(Exception):
    """The address is in use, or does not belong to this machine."""


@asynccontextmanager
async def serve(
    address: str, *, healthy: Checks, ready: Checks, metrics: Callable[[], bytes], content_type: str
) -> AsyncIterator[str]:  # fmt: skip
    """Serves while the context is open. Yields the URL. Raises CannotListen.

    address: host:port, or :port for every interface; port 0 is any that is free.
    """
    app = web.Application()
    app.router.add_get("/healthz", _answer_to(healthy))
    app.router.add_get("/readyz", _answer_to(ready))

    async def exposition(_request: web.Request) -> web.Response:
        return web.Response(body=metrics(), headers={"Content-Type": content_type})

    app.router.add_get("/metrics", exposition)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        host, _, port = address.rpartition(":")
        try:
            await web.TCPSite(runner, host.strip("[]") or None, int(port)).start()
        except (OSError, OverflowError) as error:
            words = getattr(error, "strerror", None) or error
            raise CannotListen(f"{words}: choose another address or port") from error
        yield _url(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()


def _answer_to(checks: Checks) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_request: web.Request) -> web.Response:
        failed = [name for name, is_well in checks.items() if not is_well()]
        return web.json_response({"failed": failed}, status=503 if failed else 200)

    return answer


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
