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
from tests.rljob_operator.played_driver import Driver, Head
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


# --- addresses


def test_a_head_is_found_by_the_service_that_kuberay_makes() -> None:
    assert HeadAddress().ray("team", "job") == "http://job-head-svc.team.svc:8265"
    assert HeadAddress().agent("team", "job") == "http://job-head-svc.team.svc:8900"


def test_the_address_can_be_set() -> None:
    address = HeadAddress("https://proxy/{namespace}/{service}/{port}/")
    assert address.agent("team", "job") == "https://proxy/team/job-head-svc/8900"


@pytest.mark.parametrize("template", ["http://{cluster}", "http://{", "http://{0}", "http://{port.x}", "{service}:1"])
def test_a_wrong_address_is_refused_at_once(template: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(template))):
        HeadAddress(template)


# --- submissions


@asynchronous
async def test_a_submission_carries_what_its_driver_needs(head: Head, ray_url: str) -> None:
    async with ray_jobs(ray_url) as jobs:
        await jobs.submit(ID, "rljob driver", stop_wait=120, env_vars={"A": "b"}, metadata={"attempt": "1"})

    (driver,) = head.drivers
    assert (driver.submission_id, driver.entrypoint, driver.attempt) == (ID, "rljob driver", 1)
    assert driver.metadata == {"attempt": "1"}
    assert driver.runtime_env == {"env_vars": {"A": "b", "RAY_JOB_STOP_WAIT_TIME_S": "120"}}


def play_failure(driver: Driver) -> None:
    driver.start()
    driver.end(65, "Data", "no such file")


@asynchronous
async def test_a_driver_that_ended_is_not_started_again(head: Head, ray_url: str) -> None:
    async with ray_jobs(ray_url) as jobs:
        await jobs.submit(ID, "rljob driver", stop_wait=1)
        play_failure(head.driver())
        await jobs.submit(ID, "rljob driver", stop_wait=1)

    assert len(head.drivers) == 1


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
async def test_a_submission_that_ray_cannot_start_is_no_success(heads: PlayedHeads, head: Head, ray_url: str) -> None:
    async def no_agent(request: aiohttp.web.Request, handler: Any) -> Any:
        if request.method == "GET":
            return await handler(request)
        return aiohttp.web.Response(status=500, text="No available agent to submit job, please try again later.")

    heads.disturb(head, no_agent, "ray")
    async with ray_jobs(ray_url) as jobs:
        with pytest.raises(HeadUnreachable, match="answered 500: No available agent"):
            await jobs.submit(ID, "rljob driver", stop_wait=1)


@asynchronous
async def test_a_request_that_ray_rejects_is_refused_in_its_words(head: Head, ray_url: str) -> None:
    wrong: Any = {"attempt": 1}
    async with ray_jobs(ray_url) as jobs:
        with pytest.raises(HeadRefused, match=r"answered 400: .*metadata values must be strings"):
            await jobs.submit(ID, "rljob driver", stop_wait=1, metadata=wrong)
    assert not head.drivers


# --- the agent


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

NONSENSE = [
    "", "{", "[]", "null", "7", '"RUNNING"', "<html>login</html>", "[" * 100_000,
    '{"status": "NEWER", "stopped": "perhaps", "step": -1, "checkpoints": [{}], "attempt": 1, "exit": {"code": 1}}',
    '{"status": 7, "stopped": 7, "step": NaN, "checkpoints": 7, "attempt": "x", "exit": null}',
    '{"status": [], "stopped": [], "reward": 1e999, "checkpoints": {}, "attempt": -1, "exit": null}',
]  # fmt: skip


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


@pytest.mark.parametrize("call", CALLS)
@asynchronous
async def test_a_head_that_is_not_there_is_unreachable(call: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    failure = await failure_of(call, f"http://127.0.0.1:{port}/{{service}}")
    assert isinstance(failure, HeadUnreachable)
    assert "cannot be reached" in str(failure)


@pytest.mark.parametrize("call", CALLS)
@asynchronous
async def test_a_name_that_does_not_resolve_is_unreachable(call: str) -> None:
    assert isinstance(await failure_of(call, "http://{service}.invalid:{port}"), HeadUnreachable)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (unreachable, HeadUnreachable, "cannot be reached: .*disconnected"),
        (answers(503, "no endpoints available"), HeadUnreachable, "answered 503: no endpoints available"),
        (answers(401, '{"error": "no token"}', "application/json"), HeadRefused, "answered 401: no token$"),
        (answers(403, "Forbidden"), HeadRefused, "answered 403: Forbidden$"),
        (answers(307, "elsewhere"), HeadRefused, "answered 307: elsewhere"),
    ],
    ids=["hangs up", "503", "401", "403", "redirects"],
)
@asynchronous
async def test_a_head_that_fails(
    heads: PlayedHeads, head: Head, call: str, fault: Fault, kind: type[HeadError], words: str
) -> None:
    heads.disturb(head, fault)
    failure = await failure_of(call, heads.template)
    assert type(failure) is kind
    assert re.search(words, str(failure))


@pytest.mark.parametrize("call", CALLS)
@asynchronous
async def test_a_head_that_does_not_answer_in_time_is_unreachable(heads: PlayedHeads, head: Head, call: str) -> None:
    heads.disturb(head, slow(3600))
    failure = await failure_of(call, heads.template, deadline=SOON)
    assert isinstance(failure, HeadUnreachable)
    assert "gave no answer within 0.2 s" in str(failure)


@asynchronous
async def test_an_answer_that_trickles_is_given_up(heads: PlayedHeads, head: Head) -> None:
    async def trickle(request: aiohttp.web.Request, handler: Any) -> Any:
        response = aiohttp.web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.01)

    heads.disturb(head, trickle)
    assert isinstance(await failure_of("progress", heads.template, deadline=SOON), HeadUnreachable)


@pytest.mark.parametrize("body", NONSENSE)
@pytest.mark.parametrize("call", ANSWERED)
@asynchronous
async def test_an_answer_that_makes_no_sense_is_refused(heads: PlayedHeads, head: Head, call: str, body: str) -> None:
    heads.disturb(head, answers(200, body, "application/json"))
    failure = await failure_of(call, heads.template)
    assert isinstance(failure, HeadRefused)
    assert re.search("an answer that is not (understood|JSON): ", str(failure))


@pytest.mark.parametrize("call", ANSWERED)
@asynchronous
async def test_an_answer_with_many_mistakes_is_given_up_at_the_first_of_a_list(
    heads: PlayedHeads, head: Head, call: str
) -> None:
    wrong = [{}] * 1000
    fields = ("status", "stopped", "step", "checkpoints", "attempt", "claim", "exit")
    heads.disturb(head, answers(200, json.dumps(dict.fromkeys(fields, wrong)), "application/json"))
    cause = (await failure_of(call, heads.template)).__cause__
    assert isinstance(cause, ValidationError)
    assert cause.error_count() <= len(fields)


SAVED = {"step": 1, "path": "/c", "time": "2026-11-21T12:00:00Z"}
UNFIT: list[dict[str, Any]] = [
    *({name: 10**20} for name in ("step", "totalSteps", "policyVersion")),
    {"step": f"{2**53}"},
    *({name: word} for name in ("reward", "validationReward", "percent") for word in ("nan", "inf", "-inf")),
    *({name: "nan"} for name in ("responseTokens", "tokensPerSecond")),
    {"eta": "2026-11-21T12:00:00"},
    {"eta": "2026-11-21"},
]
"""Progress with which the API server would refuse a whole status."""


@pytest.mark.parametrize("unfit", UNFIT, ids=str)
@asynchronous
async def test_progress_that_the_api_server_would_refuse_is_not_read(
    heads: PlayedHeads, head: Head, unfit: dict[str, Any]
) -> None:
    heads.disturb(head, answers(200, json.dumps({"step": 1} | unfit), "application/json"))
    failure = await failure_of("progress", heads.template)
    assert f"not understood: {next(iter(unfit))}" in str(failure)


@pytest.mark.parametrize("unfit", [{"step": 10**20}, {"time": "2026-11-21T12:00:00"}], ids=str)
@asynchronous
async def test_a_checkpoint_that_the_api_server_would_refuse_is_not_read(
    heads: PlayedHeads, head: Head, unfit: dict[str, Any]
) -> None:
    heads.disturb(head, answers(200, json.dumps({"checkpoints": [SAVED | unfit]}), "application/json"))
    failure = await failure_of("newest_checkpoint", heads.template)
    assert f"not understood: checkpoints.0.{next(iter(unfit))}" in str(failure)


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
async def test_a_number_without_end_is_not_quoted_whole(heads: PlayedHeads, head: Head) -> None:
    heads.disturb(head, answers(200, f'{{"step": {"9" * 100_000}.0}}', "application/json"))
    assert len(str(await failure_of("progress", heads.template))) < 2 * QUOTED_CHARACTERS


@asynchronous
async def test_the_newest_of_four_thousand_checkpoints_is_known(heads: PlayedHeads, head: Head, agent_url: str) -> None:
    reward = 0.12345678901234567
    listed = [
        {
            "step": 100_000 + number, "attempt": 12, "time": "2026-11-22T11:00:00.123456Z", "reward": reward,
            "path": f"/mnt/rljob/team/run/checkpoints/step-{100_000 + number}-a12", "bytes": 12_345_678_901,
            "validationReward": reward,
        }
        for number in range(4000)
    ]  # fmt: skip
    heads.disturb(head, answers(200, json.dumps({"checkpoints": listed}, separators=(",", ":")), "application/json"))
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
async def test_an_answer_without_end_is_not_read(heads: PlayedHeads, head: Head) -> None:
    heads.disturb(head, answers(200, " " * (ANSWER_BYTES + 1)))
    failure = await failure_of("progress", heads.template)
    assert isinstance(failure, HeadRefused)
    assert f"more than {ANSWER_BYTES} bytes" in str(failure)


@asynchronous
async def test_fields_of_a_newer_version_are_ignored(
    heads: PlayedHeads, head: Head, ray_url: str, agent_url: str
) -> None:
    checkpoint = {"step": 4, "path": "/c", "time": "2026-11-21T12:00:00Z", "new": 1}
    newer = {
        "status": "RUNNING", "stopped": True, "step": 3, "checkpoints": [checkpoint], "attempt": 2, "new": {"new": []},
        "exit": {"code": 75, "reason": "Infrastructure", "message": "lost", "new": 1},
    }  # fmt: skip
    heads.disturb(head, answers(200, json.dumps(newer), "application/json"))
    async with ray_jobs(ray_url) as jobs, agent(agent_url) as client:
        job, progress, newest = await jobs.status(ID), await client.progress(), await client.newest_checkpoint()
        assert await jobs.stop(ID) is True
        _, record, *_ = await client.last_exit()
    assert job is not None
    assert job.state is RayJobState.RUNNING
    assert progress is not None
    assert newest is not None
    assert record is not None
    assert (progress.step, newest.step, record.code) == (3, 4, 75)


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
    assert str(failure).endswith('answered 404: services "job-head-svc" not found')


@pytest.mark.parametrize("call", CALLS)
@asynchronous
async def test_a_wrong_token_is_refused_and_shown_to_nobody(heads: PlayedHeads, head: Head, call: str) -> None:
    failure = await failure_of(call, heads.template, ray_token="wrong-secret", agent_token="wrong-secret")
    assert isinstance(failure, HeadRefused)
    assert failure.status in (401, 403)
    assert "token" in str(failure)
    assert "wrong-secret" not in str(failure)
    assert not head.drivers
    assert not head.requests


@asynchronous
async def test_a_long_answer_is_quoted_from_its_end(heads: PlayedHeads, head: Head) -> None:
    heads.disturb(head, answers(500, "Traceback\n" + "  File ...\n" * 1000 + "RuntimeError: the cause"))
    failure = await failure_of("stop", heads.template)
    assert str(failure).endswith("RuntimeError: the cause")
    assert len(str(failure)) < 500


# --- the played heads themselves
