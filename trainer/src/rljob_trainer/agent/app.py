"""The agent's routes. JSON in camelCase; every error is {"error": "..."}.

    GET  /healthz                      without a token
    GET  /v1/progress                  rljob_api.v1alpha1.Progress
    GET  /v1/checkpoints               {"checkpoints": [{step, attempt, path, time, reward, validationReward, bytes}]}:
                                       those that count, oldest first; 503 if the newest cannot be read
    GET  /v1/exit                      {"attempt", "claim", "exit", "preflight", "heartbeat"} of the last attempt; exit
                                       is null until it ends; preflight is a rljob_api.preflight.PreflightRecord, null
                                       until the measurement ends and if there is none; heartbeat changes every few
                                       seconds while its driver lives
    POST /v1/checkpoint?stop=true      asks the driver to save a checkpoint and then stop; 503 if the request cannot be
                                       written
    GET  /metrics                      Prometheus; without a token if open_metrics is set

Handlers are plain functions, which Starlette runs in threads: a volume that hangs does not block /healthz.
"""

import hmac
import uuid
from collections.abc import Awaitable, Callable, Collection
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rljob_trainer.agent.prometheus import CONTENT_TYPE, exposition
from rljob_trainer.progress.state import heartbeat, last_attempt, read_object
from rljob_trainer.volume import Volume, write_json

_LISTED = {"step", "attempt", "time", "reward", "validation_reward"}
_STOP = {"true": True, "false": False}


def create_app(volume: Volume, token: str, *, open_metrics: bool = False) -> Starlette:
    """The agent of one run. Callers send `token` as `Authorization: Bearer`.

    open_metrics: /metrics needs no token, because a Prometheus that scrapes many runs cannot hold a token for each.
    """
    open_paths = ("/healthz", "/metrics") if open_metrics else ("/healthz",)
    authorize = partial(_authorize, f"Bearer {token}".encode(), open_paths)
    handlers = {"/v1/progress": _progress, "/v1/checkpoints": _checkpoints, "/v1/exit": _exit, "/metrics": _metrics}
    return Starlette(
        routes=[
            Route("/healthz", _healthz),
            Route("/v1/checkpoint", partial(_request_checkpoint, volume), methods=["POST"]),
            *(Route(path, partial(handler, volume)) for path, handler in handlers.items()),
        ],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=authorize)],
        exception_handlers={HTTPException: _as_json},
    )


async def _authorize(
    expected: bytes, open_paths: Collection[str], request: Request, proceed: Callable[[Request], Awaitable[Response]]
) -> Response:
    given = request.headers.get("authorization", "").encode()
    if request.url.path in open_paths or hmac.compare_digest(given, expected):
        return await proceed(request)
    challenge = {"WWW-Authenticate": 'Bearer realm="rljob"'}
    return JSONResponse({"error": "this needs the run's token as Authorization: Bearer"}, 401, challenge)


def _as_json(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _healthz(_request: Request) -> Response:
    return JSONResponse({"status": "ok"})


def _progress(volume: Volume, _request: Request) -> Response:
    progress = read_object(volume.progress)
    if progress is None:
        raise HTTPException(404, "the driver has not reported progress yet")
    return JSONResponse(progress)


def _checkpoints(volume: Volume, _request: Request) -> Response:
    # Imported at the first request: these modules import pydantic's models, which would delay the agent's start.
    from rljob_trainer.checkpoint.manifest import counting, newest, survey
    from rljob_trainer.errors import InfrastructureError

    try:
        found = survey(volume)
    except InfrastructureError as error:
        raise HTTPException(503, error.message) from error
    last = newest(found)
    if last is not None and last.problem:  # an older one must not appear as the one to resume from
        raise HTTPException(503, last.problem)
    listed = [
        ref.manifest.model_dump(mode="json", by_alias=True, include=_LISTED)
        | {"path": str(ref.path), "bytes": ref.manifest.bytes}
        for ref in counting(found)
    ]
    return JSONResponse({"checkpoints": listed})


def _exit(volume: Volume, _request: Request) -> Response:
    attempt = last_attempt(volume)
    claim, ended = read_object(volume.claim(attempt)), read_object(volume.exit_record(attempt))
    preflight = read_object(volume.preflight_record(attempt))  # after the exit, which a driver writes later
    return JSONResponse(
        {
            "attempt": attempt,
            "claim": claim,
            "exit": ended,
            "preflight": preflight,
            "heartbeat": heartbeat(volume),
        }
    )


def _request_checkpoint(volume: Volume, request: Request) -> Response:
    stop = _STOP.get(request.query_params.get("stop", "false"))
    if stop is None:
        raise HTTPException(400, "stop must be true or false")
    asked = {"id": uuid.uuid4().hex, "checkpoint": True, "stop": stop}
    try:
        write_json(volume.request, asked)
    except OSError as error:
        raise HTTPException(503, f"cannot write the request to the volume: {error.strerror}") from error
    return JSONResponse(asked, 202)


def _metrics(volume: Volume, _request: Request) -> Response:
    return Response(exposition(volume), media_type=CONTENT_TYPE)
