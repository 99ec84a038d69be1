"""HTTP to one API server: its address, the credentials, and one pool of connections."""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from yaml import YAMLError
from yarl import URL

from rljob_operator.kube.errors import Fenced, NoCluster, Unavailable

Fence = Callable[[], None]
"""Raises Fenced if this process must not write any more."""


_WARNING = re.compile(r'\d{3} \S+ "((?:[^"\\]|\\.)*)"')
"""A header may hold several, such as `299 - "unknown field \\"spec.x\\""`."""


@dataclass(frozen=True)
class Answer:
    """warnings: of the API server about a request that it has carried out."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    warnings: tuple[str, ...] = ()


class Connection:
    """load: reads host, certificates and token into the configuration; once more each time the token is refused.
    Client certificates are read once.
    """

    def __init__(
        self, configuration: Configuration, load: Callable[[Configuration], Awaitable[None]], *, limit: int = 64
    ) -> None:
        self._configuration = configuration
        self._load = load
        self._loading = asyncio.Lock()
        tls = RESTClientObject(configuration).ssl_context
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls, limit=limit))
        self._options: dict[str, Any] = {
            "server_hostname": configuration.tls_server_name,
            "proxy": configuration.proxy,
            "proxy_headers": configuration.proxy_headers,
            "allow_redirects": False,
        }

    @classmethod
    async def open(cls, kubeconfig: str | None = None, context: str | None = None, *, limit: int = 64) -> Self:
        """To the cluster of the kubeconfig or context that is given here or by KUBECONFIG; else of this pod; else of
        ~/.kube/config. limit: of connections at a time. Raises NoCluster.
        """
        kubeconfig, configuration = kubeconfig or os.environ.get("KUBECONFIG"), Configuration()
        load = partial(_load, kubeconfig, context)
        await load(configuration)
        with _whole(kubeconfig, context):  # certificates among it
            return cls(configuration, load, limit=limit)

    @property
    def configuration(self) -> Configuration:
        """Address and credentials, for libraries that connect by themselves."""
        return self._configuration

    async def close(self) -> None:
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def read(self, path: str, *, timeout: float) -> Answer:
        return await self._authorized("GET", path, None, timeout)

    async def write(
        self, method: str, path: str, body: bytes, content_type: str, *, fence: Fence, timeout: float
    ) -> Answer:  # fmt: skip
        return await self._authorized(method, path, _FencedBody(body, fence, content_type), timeout)

    async def _authorized(self, method: str, path: str, body: "_FencedBody | None", timeout: float) -> Answer:
        """A request that is refused with 401 has changed nothing, and is repeated once if there is a newer token."""
        token = await self._token()
        answer = await self._send(method, path, body, token, timeout)
        if answer.status == 401 and (newer := await self._newer_token(token)):
            return await self._send(method, path, body, newer, timeout)
        return answer

    async def _send(
        self, method: str, path: str, body: "_FencedBody | None", token: str | None, timeout: float
    ) -> Answer:  # fmt: skip
        """Raises Unavailable if no complete answer came in time."""
        url = URL(self._configuration.host + path, encoded=True)
        headers = {"Authorization": token} if token else {}
        deadline = aiohttp.ClientTimeout(total=timeout)
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, timeout=deadline, **self._options
            ) as response:
                warnings = _warnings(response.headers.getall("Warning", ()))
                return Answer(response.status, response.headers, await response.read(), warnings)
        except TimeoutError as error:
            raise Unavailable(f"no answer in {timeout:g} s: {method} {path}", reason="Timeout") from error
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error.__cause__, Fenced):
                raise error.__cause__ from None
            raise Unavailable(str(error) or type(error).__name__, reason="NoConnection") from error

    async def _token(self) -> str | None:
        return await self._configuration.get_api_key_with_prefix("BearerToken")

    async def _newer_token(self, refused: str | None) -> str | None:
        async with self._loading:
            if await self._token() == refused:
                await self._load(self._configuration)
        token = await self._token()
        return token if token != refused else None


def _warnings(headers: Iterable[str]) -> tuple[str, ...]:
    return tuple(re.sub(r"\\(.)", r"\1", found[1]) for each in headers for found in _WARNING.finditer(each))


class _FencedBody(aiohttp.BytesPayload):
    """Asks the fence when the request goes out, which may be long after the call began: the wait for a free
    connection and the handshake lie between. Headers leave together with the body, so what is fenced leaves no trace.
    """

    def __init__(self, value: bytes, fence: Fence, content_type: str) -> None:
        super().__init__(value, content_type=content_type)
        self._fence = fence

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        self._fence()
        await super().write_with_length(writer, content_length)


async def _load(kubeconfig: str | None, context: str | None, configuration: Configuration) -> None:
    with _whole(kubeconfig, context):
        if _is_of_pod(kubeconfig, context):
            load_incluster_config(configuration)
        else:
            await load_kube_config(kubeconfig, context, configuration, persist_config=False)


def _is_of_pod(kubeconfig: str | None, context: str | None) -> bool:
    return not (kubeconfig or context) and "KUBERNETES_SERVICE_HOST" in os.environ


@contextmanager
def _whole(kubeconfig: str | None, context: str | None) -> Iterator[None]:
    """Raises NoCluster if something is missing or malformed."""
    try:
        yield
    except ConfigException as error:
        raise NoCluster(f"no API server: {error}; set KUBECONFIG, name a context, or run inside a pod") from error
    except (AttributeError, LookupError, OSError, TypeError, ValueError, YAMLError) as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())
        what = f"the kubeconfig {kubeconfig or '~/.kube/config'}"
        if _is_of_pod(kubeconfig, context):
            what = "the token or certificate of this pod's account"
        raise NoCluster(f"no API server: {what} cannot be read: {words}") from error
