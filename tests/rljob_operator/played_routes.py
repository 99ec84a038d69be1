"""What a played head answers: Ray 2.60's Jobs API, and the agent's. The head is in the request."""

import secrets
import uuid
from collections.abc import Awaitable, Callable

from aiohttp import web

from tests.rljob_operator.played_driver import Driver, Head, Json

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEAD = web.RequestKey("head", Head)

# --- Ray's Jobs API


def _ray_token(handler: Handler) -> Handler:
    async def guarded(request: web.Request) -> web.StreamResponse:
        given = request.headers.get("Authorization") or request.headers.get("X-Ray-Authorization")
        expected = request[HEAD].ray_token
        if not given:
            return web.Response(status=401, text="Unauthorized: Missing authentication token")
        if expected is not None and given != f"Bearer {expected}":
            return web.Response(status=403, text="Forbidden: Invalid authentication token")
        return await handler(request)

    return guarded


async def _submit(request: web.Request) -> web.Response:
    head, asked = request[HEAD], await request.json()
    try:
        driver = _accepted(head, **{name: value for name, value in asked.items() if value is not None})
    except TypeError as error:
        return web.Response(status=400, text=f"Traceback (most recent call last):\n  ...\nTypeError: {error}\n")
    if not head.submit(driver):
        inner = f"Job with submission_id {driver.submission_id} already exists. Please use a different submission_id."
        trace = "Traceback (most recent call last):\n  ...\n"
        wrapped = f"RuntimeError: Request failed with status code 400: {trace}ValueError: {inner}\n."
        return web.Response(status=500, text=f"{trace}{wrapped}\n")
    return web.json_response({"job_id": driver.submission_id, "submission_id": driver.submission_id})


def _accepted(
    head: Head, entrypoint: str, submission_id: str | None = None, runtime_env: Json | None = None,
    metadata: dict[str, str] | None = None,
) -> Driver:  # fmt: skip
    if not isinstance(entrypoint, str):
        raise TypeError(f"entrypoint must be a string, got {type(entrypoint)}")
    for value in (metadata or {}).values():
        if not isinstance(value, str):
            raise TypeError(f"metadata values must be strings, got {type(value)}")
    return Driver(head, submission_id or f"raysubmit_{secrets.token_hex(8)}", entrypoint, runtime_env, metadata)


async def _list(request: web.Request) -> web.Response:
    head = request[HEAD]
    with head.lock:
        return web.json_response([_details(driver) for driver in head.known.values()])


async def _get(request: web.Request) -> web.Response:
    head, submission_id = request[HEAD], request.match_info["id"]
    with head.lock:
        driver = head.known.get(submission_id)
        return web.json_response(_details(driver)) if driver else _unknown(submission_id)


async def _stop(request: web.Request) -> web.Response:
    head, submission_id = request[HEAD], request.match_info["id"]
    with head.lock:
        driver = head.known.get(submission_id)
        return web.json_response({"stopped": driver.stop()}) if driver else _unknown(submission_id)


def _unknown(submission_id: str) -> web.Response:
    return web.Response(status=404, text=f"Job {submission_id} does not exist")


_MESSAGES = {
    "PENDING": "Job has not started yet. It may be waiting for the runtime environment to be set up.",
    "RUNNING": "Job is currently running.",
    "STOPPED": "Job was intentionally stopped.",
    "SUCCEEDED": "Job finished successfully.",
    "FAILED": "Job failed.",
}


def _details(driver: Driver) -> Json:
    error_type, message = driver.error or (None, _MESSAGES[driver.state])
    node = None if driver.state == "PENDING" else "0" * 56
    return {
        "type": "SUBMISSION", "job_id": None, "submission_id": driver.submission_id, "driver_info": None,
        "status": driver.state, "entrypoint": driver.entrypoint, "message": message, "error_type": error_type,
        "start_time": driver.start_time, "end_time": driver.end_time, "metadata": driver.metadata,
        "runtime_env": driver.runtime_env, "driver_agent_http_address": node and "http://127.0.0.1:52365",
        "driver_node_id": node, "driver_exit_code": driver.exit_code,
    }  # fmt: skip


# --- the agent


def _agent_token(handler: Handler) -> Handler:
    async def guarded(request: web.Request) -> web.StreamResponse:
        given, expected = request.headers.get("Authorization", ""), request[HEAD].agent_token
        if not given or (expected is not None and given != f"Bearer {expected}"):
            return _error(401, "this needs the run's token as Authorization: Bearer")
        return await handler(request)

    return guarded


async def _progress(request: web.Request) -> web.Response:
    progress = request[HEAD].volume.progress
    return _error(404, "the driver has not reported progress yet") if progress is None else web.json_response(progress)


async def _checkpoints(request: web.Request) -> web.Response:
    return web.json_response({"checkpoints": request[HEAD].volume.checkpoints})


async def _exit(request: web.Request) -> web.Response:
    head = request[HEAD]
    with head.lock:
        last = max(head.volume.claims, default=0)
        claim, ended = head.volume.claims.get(last), head.volume.exits.get(last)
        beats = [driver.heartbeat for driver in head.drivers if driver.attempt == last and driver.alive]
        heartbeat = beats[0] if beats else 1 if head.volume.progress else None
        return web.json_response(
            {"attempt": last, "claim": claim, "exit": ended, "preflight": None, "heartbeat": heartbeat}
        )


async def _request_checkpoint(request: web.Request) -> web.Response:
    head, stop = request[HEAD], request.query.get("stop", "false")
    if stop not in ("true", "false"):
        return _error(400, "stop must be true or false")
    asked = {"id": uuid.uuid4().hex, "checkpoint": True, "stop": stop == "true"}
    with head.lock:
        head.volume.request = asked
        head.requests.append(asked)
    return web.json_response(asked, status=202)


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)


ROUTES = {
    "ray": (
        ("POST", "/api/jobs/", _ray_token(_submit)),
        ("GET", "/api/jobs/", _ray_token(_list)),
        ("GET", "/api/jobs/{id}", _ray_token(_get)),
        ("POST", "/api/jobs/{id}/stop", _ray_token(_stop)),
    ),
    "agent": (
        ("GET", "/v1/progress", _agent_token(_progress)),
        ("GET", "/v1/checkpoints", _agent_token(_checkpoints)),
        ("GET", "/v1/exit", _agent_token(_exit)),
        ("POST", "/v1/checkpoint", _agent_token(_request_checkpoint)),
    ),
}
"""Method, path and handler of each server's routes."""
