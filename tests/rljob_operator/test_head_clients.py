"""The clients of a head pod, whatever is at the other end."""

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from pydantic import ValidationError

from rljob_api.v1alpha1.status import EXACT
from rljob_operator.head.address import HeadAddress
from rljob_operator.head.agent import Agent
from rljob_operator.head.endpoint import ANSWER_BYTES, QUOTED_CHARACTERS, shared_session
from rljob_operator.head.errors import HeadError, HeadRefused, HeadUnreachable
from rljob_operator.head.ray_jobs import RayJobs, RayJobState
from tests.rljob_operator.head_support import agent, asynchronous, ray_jobs
from tests.rljob_operator.played_driver import Head
from tests.rljob_operator.played_head import Fault, PlayedHeads, answer_lost, answers, slow, unreachable

ID = "0f3c-a1"
SOON = 0.2
"""A deadline that passes."""


@pytest.fixture(scope="module")
def heads() -> Iterator[PlayedHeads]:
    with PlayedHeads() as heads:
        yield heads


@pytest.fixture
def head(heads: PlayedHeads) -> Iterator[Head]:
    head = heads.add("team", "job", ray_token="r", agent_token="a")
    yield head
    heads.heal(head)


@pytest.fixture
def ray_url(heads: PlayedHeads, head: Head) -> str:
    return HeadAddress(heads.template).ray("team", "job")


@pytest.fixture
def agent_url(heads: PlayedHeads, head: Head) -> str:
    return HeadAddress(heads.template).agent("team", "job")


def test_a_head_is_found_by_the_service_that_kuberay_makes_or_through_a_proxy() -> None:
    assert HeadAddress().ray("team", "job") == "http://job-head-svc.team.svc:8265"
    assert HeadAddress().agent("team", "job") == "http://job-head-svc.team.svc:8900"
    address = HeadAddress("https://proxy/{namespace}/{service}/{port}/")
    assert address.agent("team", "job") == "https://proxy/team/job-head-svc/8900"


@pytest.mark.parametrize("template", ["http://{cluster}", "http://{", "http://{0}", "http://{port.x}", "{service}:1"])
def test_a_wrong_address_is_refused_at_once(template: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(template))):
        HeadAddress(template)


@asynchronous
async def test_a_submission_carries_what_its_driver_needs_and_starts_it_once(head: Head, ray_url: str) -> None:
    async with ray_jobs(ray_url) as jobs:
        await jobs.submit(ID, "rljob driver", stop_wait=120, env_vars={"A": "b"}, metadata={"attempt": "1"})
        head.driver().start()
        head.driver().end(65, "Data", "no such file")
        await jobs.submit(ID, "rljob driver", stop_wait=1)
    (driver,) = head.drivers
    assert (driver.submission_id, driver.entrypoint, driver.attempt) == (ID, "rljob driver", 1)
    assert driver.metadata == {"attempt": "1"}
    assert driver.runtime_env == {"env_vars": {"A": "b", "RAY_JOB_STOP_WAIT_TIME_S": "120"}}


@asynchronous
async def test_a_submission_whose_answer_is_lost_can_be_repeated(heads: PlayedHeads, head: Head, ray_url: str) -> None:
    async with ray_jobs(ray_url) as jobs:
        heads.disturb(head, answer_lost, "ray")
        with pytest.raises(HeadUnreachable) as lost:
            await jobs.submit(ID, "rljob driver", stop_wait=1)
        heads.heal(head)
        await jobs.submit(ID, "rljob driver", stop_wait=1)
    assert lost.value.status is None
    assert len(head.drivers) == 1


@asynchronous
async def test_a_submission_that_ray_cannot_start_or_rejects_is_no_success(
    heads: PlayedHeads, head: Head, ray_url: str
) -> None:
    async def no_agent(request: aiohttp.web.Request, handler: Any) -> Any:
        if request.method == "GET":
            return await handler(request)
        return aiohttp.web.Response(status=500, text="No available agent to submit job, please try again later.")

    wrong: Any = {"attempt": 1}
    async with ray_jobs(ray_url) as jobs:
        with pytest.raises(HeadRefused, match=r"answered 400: .*metadata values must be strings"):
            await jobs.submit(ID, "rljob driver", stop_wait=1, metadata=wrong)
        heads.disturb(head, no_agent, "ray")
        with pytest.raises(HeadUnreachable, match="answered 500: No available agent"):
            await jobs.submit(ID, "rljob driver", stop_wait=1)
    assert not head.drivers


# --- trouble, alike for every call


CALLS: dict[str, Any] = {
    "status": lambda ray, agent: ray.status(ID),
    "submit": lambda ray, agent: ray.submit(ID, "rljob driver", stop_wait=1),
    "stop": lambda ray, agent: ray.stop(ID),
    "progress": lambda ray, agent: agent.progress(),
    "newest_checkpoint": lambda ray, agent: agent.newest_checkpoint(),
    "last_exit": lambda ray, agent: agent.last_exit(),
    "request_checkpoint": lambda ray, agent: agent.request_checkpoint(stop=True),
}
ANSWERED = [name for name in CALLS if name not in ("submit", "request_checkpoint")]
"""Those whose answer is read."""


async def failure_of(
    call: str, template: str, *, ray_token: str = "r", agent_token: str = "a", deadline: float = 60.0
) -> HeadError:
    address = HeadAddress(template)
    async with aiohttp.ClientSession() as session:
        jobs = RayJobs(session, address.ray("team", "job"), ray_token, deadline)
        client = Agent(session, address.agent("team", "job"), agent_token, deadline)
        with pytest.raises(HeadError) as failed:
            await CALLS[call](jobs, client)
    return failed.value


async def trickle(request: aiohttp.web.Request, handler: Any) -> Any:
    response = aiohttp.web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.01)


FAULTS: dict[str, tuple[Fault, type[HeadError], str]] = {
    "hangs up": (unreachable, HeadUnreachable, "cannot be reached: .*disconnected"),
    "503": (answers(503, "no endpoints available"), HeadUnreachable, "answered 503: no endpoints available"),
    "401": (answers(401, '{"error": "no token"}', "application/json"), HeadRefused, "answered 401: no token$"),
    "403": (answers(403, "Forbidden"), HeadRefused, "answered 403: Forbidden$"),
    "redirects": (answers(307, "elsewhere"), HeadRefused, "answered 307: elsewhere"),
    "says nothing": (slow(3600), HeadUnreachable, "gave no answer within 0.2 s"),
    "trickles": (trickle, HeadUnreachable, "gave no answer within 0.2 s"),
    "a traceback": (answers(500, "Traceback\n" + "  File ...\n" * 1000 + "RuntimeError: cause"), HeadUnreachable,
                    "RuntimeError: cause$"),
    "without end": (answers(403, " " * (ANSWER_BYTES + 1)), HeadRefused, f"more than {ANSWER_BYTES} bytes"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
@asynchronous
async def test_a_head_that_fails(heads: PlayedHeads, head: Head, fault: str) -> None:
    how, kind, words = FAULTS[fault]
    heads.disturb(head, how)
    for call in CALLS:
        failure = await failure_of(call, heads.template, deadline=SOON if "within" in words else 60.0)
        assert type(failure) is kind
        assert re.search(words, str(failure))
        assert len(str(failure)) < 2 * QUOTED_CHARACTERS


@asynchronous
async def test_a_head_that_is_not_there_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for template in (f"http://127.0.0.1:{port}/{{service}}", "http://{service}.invalid:{port}"):
        for call in CALLS:
            failure = await failure_of(call, template)
            assert isinstance(failure, HeadUnreachable)
            assert "cannot be reached" in str(failure)


@asynchronous
async def test_a_wrong_token_is_refused_and_never_shown(heads: PlayedHeads, head: Head) -> None:
    for call in CALLS:
        failure = await failure_of(call, heads.template, ray_token="wrong-secret", agent_token="wrong-secret")
        assert isinstance(failure, HeadRefused)
        assert failure.status in (401, 403)
        assert "wrong-secret" not in str(failure)
    assert not head.drivers
    assert not head.requests


@pytest.mark.parametrize("call", ["status", "stop"])
@asynchronous
async def test_a_proxy_that_knows_no_such_head_does_not_speak_for_ray(
    heads: PlayedHeads, head: Head, call: str
) -> None:
    """Else a driver that runs would count as lost."""
    said = '{"kind": "Status", "message": "services \\"job-head-svc\\" not found", "code": 404}'
    heads.disturb(head, answers(404, said, "application/json"))
    failure = await failure_of(call, heads.template)
    assert isinstance(failure, HeadRefused)
    assert failure.status == 404


# --- answers that are read


NONSENSE = [
    "", "{", "[]", "null", "7", '"RUNNING"', "<html>login</html>", "[" * 100_000,
    '{"status": "NEWER", "stopped": "perhaps", "step": -1, "checkpoints": [{}], "attempt": 1, "exit": {"code": 1}}',
    '{"status": 7, "stopped": 7, "step": NaN, "checkpoints": 7, "attempt": "x", "exit": null}',
    '{"status": [], "stopped": [], "reward": 1e999, "checkpoints": {}, "attempt": -1, "exit": null}',
    f'{{"status": 7, "stopped": 7, "step": {"9" * 100_000}.0, "checkpoints": 7, "attempt": -1}}',
]  # fmt: skip


@pytest.mark.parametrize("body", NONSENSE, ids=range(len(NONSENSE)))
@asynchronous
async def test_an_answer_that_makes_no_sense_is_refused(heads: PlayedHeads, head: Head, body: str) -> None:
    heads.disturb(head, answers(200, body, "application/json"))
    for call in ANSWERED:
        failure = await failure_of(call, heads.template)
        assert isinstance(failure, HeadRefused)
        assert re.search("an answer that is not (understood|JSON): ", str(failure))
        assert len(str(failure)) < 2 * QUOTED_CHARACTERS


@asynchronous
async def test_an_answer_with_many_mistakes_is_given_up_at_the_first_of_a_list(heads: PlayedHeads, head: Head) -> None:
    fields = ("status", "stopped", "step", "checkpoints", "attempt", "claim", "exit")
    heads.disturb(head, answers(200, json.dumps(dict.fromkeys(fields, [{}] * 1000)), "application/json"))
    for call in ANSWERED:
        cause = (await failure_of(call, heads.template)).__cause__
        assert isinstance(cause, ValidationError)
        assert cause.error_count() <= len(fields)


SAVED = {"step": 1, "path": "/c", "time": "2026-11-21T12:00:00Z"}
UNFIT: list[tuple[str, dict[str, Any], str]] = [
    *(("progress", {name: 10**20}, name) for name in ("step", "totalSteps", "policyVersion")),
    ("progress", {"step": f"{2**53}"}, "step"),
    *(("progress", {name: word}, name) for name in ("reward", "validationReward", "percent")
      for word in ("nan", "inf", "-inf")),
    *(("progress", {name: "nan"}, name) for name in ("responseTokens", "tokensPerSecond")),
    *(("progress", {"eta": when}, "eta") for when in ("2026-11-21T12:00:00", "2026-11-21")),
    *(("newest_checkpoint", {"checkpoints": [SAVED | {name: value}]}, f"checkpoints.0.{name}")
      for name, value in (("step", 10**20), ("time", "2026-11-21T12:00:00"))),
]  # fmt: skip
"""With which the API server would refuse a whole status."""


@asynchronous
async def test_what_the_api_server_would_refuse_is_not_read(heads: PlayedHeads, head: Head) -> None:
    for call, unfit, field in UNFIT:
        heads.disturb(head, answers(200, json.dumps({"step": 1} | unfit), "application/json"))
        assert f"not understood: {field}" in str(await failure_of(call, heads.template))


@asynchronous
async def test_the_largest_numbers_that_are_read_are_written_as_they_are(
    heads: PlayedHeads, head: Head, agent_url: str
) -> None:
    told = dict.fromkeys(("step", "totalSteps", "policyVersion"), EXACT) | {"reward": -1.7e308, "percent": 100.0}
    heads.disturb(head, answers(200, json.dumps(told), "application/json"))
    async with agent(agent_url) as client:
        progress = await client.progress()
    assert progress is not None
    written = json.dumps(progress.model_dump(mode="json", by_alias=True), allow_nan=False)
    assert json.loads(written).items() >= told.items()


@asynchronous
async def test_the_newest_of_four_thousand_checkpoints_is_known(heads: PlayedHeads, head: Head, agent_url: str) -> None:
    one = {"attempt": 12, "time": "2026-11-22T11:00:00.123456Z", "path": "/mnt/rljob/team/run/checkpoints/step-1-a12",
           "bytes": 12_345_678_901, "reward": 0.12345678901234567, "validationReward": 0.12345678901234567}  # fmt: skip
    listed = json.dumps({"checkpoints": [one | {"step": 100_000 + number} for number in range(4000)]})
    heads.disturb(head, answers(200, listed, "application/json"))
    async with agent(agent_url) as client:
        newest = await client.newest_checkpoint()
    assert newest is not None
    assert newest.step == 103_999


@asynchronous
async def test_no_cookie_of_a_head_reaches_another(heads: PlayedHeads) -> None:
    told = list[str]()

    async def tell(request: aiohttp.web.Request, _: Any) -> Any:
        told.append(request.headers.get("Cookie", ""))
        answer = aiohttp.web.json_response({"status": "RUNNING"})
        answer.set_cookie("mark", "1", path="/")
        return answer

    address = HeadAddress(heads.template.replace("127.0.0.1", "localhost"))  # of an IP address no cookie is kept
    async with shared_session() as session:
        for cluster in ("job", "other"):
            heads.disturb(heads.add("team", cluster), tell)
            await RayJobs(session, address.ray("team", cluster), "r").status(ID)
    assert told == ["", ""]


@asynchronous
async def test_fields_of_a_newer_version_are_ignored(
    heads: PlayedHeads, head: Head, ray_url: str, agent_url: str
) -> None:
    newer = {
        "status": "RUNNING", "stopped": True, "step": 3, "checkpoints": [SAVED | {"new": 1}], "attempt": 2, "new": {},
        "exit": {"code": 75, "reason": "Infrastructure", "message": "lost", "new": 1},
        "preflight": {"passed": True, "time": "2026-11-22T12:00:00Z", "seconds": 1, "new": 1},
    }  # fmt: skip
    heads.disturb(head, answers(200, json.dumps(newer), "application/json"))
    async with ray_jobs(ray_url) as jobs, agent(agent_url) as client:
        job, progress, newest = await jobs.status(ID), await client.progress(), await client.newest_checkpoint()
        assert await jobs.stop(ID) is True
        last = await client.last_exit()
    assert (job and job.state, progress and progress.step) == (RayJobState.RUNNING, 3)
    assert (newest and newest.step, last.exit and last.exit.code) == (1, 75)
    assert last.preflight is not None


@pytest.mark.parametrize("preflight", [{"passed": "perhaps"}, {"passed": False, "reason": "Odd"}, 3, []])
@asynchronous
async def test_an_exit_counts_without_its_preflight_if_that_cannot_be_read(
    heads: PlayedHeads, head: Head, agent_url: str, preflight: object
) -> None:
    told = {"attempt": 2, "exit": {"code": 75, "reason": "FabricSlow", "message": "m"}, "preflight": preflight}
    heads.disturb(head, answers(200, json.dumps(told), "application/json"))
    async with agent(agent_url) as client:
        last = await client.last_exit()
    assert (last.exit and last.exit.code, last.preflight) == (75, None)
