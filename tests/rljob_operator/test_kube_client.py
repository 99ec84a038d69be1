"""The client against an API server in memory: what goes out, and what its answers mean."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from rljob_operator.kube.client import Kube
from rljob_operator.kube.errors import (
    AlreadyExists,
    Conflict,
    Fenced,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
    Terminating,
    Throttled,
    Unavailable,
)
from rljob_operator.kube.kinds import CONFIG_MAP, POD, Manifest, Ref
from tests.rljob_operator.kube_server import KubeServer, response, status
from tests.rljob_operator.loops import in_loop

PODS = "/api/v1/namespaces/ns/pods"


@asynccontextmanager
async def kube_and_server(limit: int = 64, **options: Any) -> AsyncIterator[tuple[Kube, KubeServer]]:
    async with KubeServer() as server, server.connect(limit) as connection:
        yield Kube(connection, **options), server


def pod(name: str = "a", **metadata: Any) -> Manifest:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "ns", "name": name, **metadata}}


@in_loop
async def test_a_conflict_about_the_very_object_is_no_success() -> None:
    async with kube_and_server() as (kube, server):
        ref = Ref.of(server.put(f"{PODS}/a", pod()))
        server.answers.append(response(status(409, "the operation cannot be fulfilled")))
        with pytest.raises(Conflict):
            await kube.delete(ref)
        asked = server.requests[-1]
        with pytest.raises(ValueError, match="uid"):
            await kube.delete(Ref(POD, "ns", "a"))
    assert (asked.path, asked.query["fieldSelector"]) == (PODS, "metadata.name=a"), "to get one takes another right"


@in_loop
async def test_a_list_is_all_pages_with_the_names_of_its_kind() -> None:
    names = [f"p{i:04}" for i in range(1201)]
    async with kube_and_server() as (kube, server):
        for name in names:
            server.put(f"{PODS}/{name}", pod(name))
        listed = await kube.list(POD)
        assert [r.query["limit"] for r in server.requests] == ["500"] * 3
        await kube.list(POD, "ns", label_selector="a=b")
        assert (server.requests[0].path, server.requests[-1].path) == ("/api/v1/pods", PODS)
        assert server.requests[-1].query["labelSelector"] == "a=b"
    assert [item["metadata"]["name"] for item in listed.items] == names
    assert {(item["apiVersion"], item["kind"]) for item in listed.items} == {("v1", "Pod")}
    assert listed.resource_version == "5000"


@pytest.mark.parametrize(
    ("code", "error"),
    [(400, Invalid), (401, Forbidden), (403, Forbidden), (404, NotFound), (409, Conflict), (410, Unavailable),
     (415, Invalid), (422, Invalid), (429, Throttled), (500, Unavailable), (503, Unavailable), (504, Unavailable)],
)  # fmt: skip
@in_loop
async def test_every_refusal_has_one_type_and_the_servers_words(code: int, error: type[KubeError]) -> None:
    async with kube_and_server() as (kube, server):
        server.answers.append(response(status(code, "its words", reason="ItsReason")))
        with pytest.raises(error, match="its words") as caught:
            await kube.get(Ref(POD, "ns", "a"))
    assert type(caught.value) is error
    assert (caught.value.status, caught.value.reason) == (code, "ItsReason")


WEBHOOK, POLICY = 'admission webhook "a.b.com" denied the request', "ValidatingAdmissionPolicy 'teams' denied: no"
NO_KIND = 'cannot find RESTMapping for APIVersion rljob.dev/v1alpha1 Kind RLJob: no matches for kind "RLJob"'

SENTENCES = [
    (400, f"{WEBHOOK}: unsigned image", [], Forbidden),
    (422, f"{WEBHOOK} without explanation", [], Forbidden),
    (422, f'rayclusters "a" is forbidden: {POLICY}', [], Forbidden),
    (500, "Internal error occurred: failed calling webhook: connection refused", [], Forbidden),
    (403, 'pods "a" is forbidden: it is being terminated', [{"reason": "NamespaceTerminating"}], Terminating),
    (
        500,
        "failed to create typed patch object (ns/a; v1, Kind=Pod): .spec.x: not declared",
        [],
        Invalid,
    ),
    (500, "failed to convert new object (ns/a; v1, Kind=Pod): cannot convert float64 to int64", [], Invalid),
    (403, f'configmaps "a-job" is forbidden: cannot set blockOwnerDeletion because {NO_KIND}', [], Unavailable),
]


@pytest.mark.parametrize(("code", "words", "causes", "kind"), SENTENCES)
@in_loop
async def test_what_an_answer_means_that_its_status_alone_does_not_say(
    code: int, words: str, causes: list[dict[str, str]], kind: type[KubeError]
) -> None:
    async with kube_and_server() as (kube, server):
        server.answers.append(response(status(code, words, reason="BadRequest", causes=causes)))
        with pytest.raises(KubeError) as caught:
            await kube.apply(pod())
    assert (type(caught.value), caught.value.message) == (kind, words)


@in_loop
async def test_a_field_that_the_api_server_does_not_know_is_told() -> None:
    typos = (
        '299 - "unknown field \\"spec.bogus\\"", 299 - "v1 Pod is deprecated"',
        '299 - "unknown field \\"spec.x\\""',
    )
    told: list[str] = []
    async with kube_and_server() as (kube, server):
        answer = response((201, pod(uid="a")))
        for each in typos:
            answer.headers.add("Warning", each)
        server.answers.append(answer)
        await kube.create(pod(), told.append)
        assert server.requests[-1].query["fieldValidation"] == "Warn", "another KubeRay may lack a field of ours"
    assert told == ['unknown field "spec.bogus"', 'unknown field "spec.x"']


@in_loop
async def test_throttling_says_for_how_long() -> None:
    async with kube_and_server() as (kube, server):
        server.answers.append(web.Response(status=429, text="too many requests", headers={"Retry-After": "7"}))
        server.answers.append(response(status(500, "again", retryAfterSeconds=3)))
        server.answers.append(response(status(429, "again")))
        asked = []
        for _ in range(3):
            with pytest.raises(Unavailable) as caught:
                await kube.get(Ref(POD, "ns", "a"))
            asked.append(caught.value.retry_after)
    assert asked == [7, 3, None]


@in_loop
async def test_a_server_that_is_silent_gone_or_something_else_is_unavailable() -> None:
    async with kube_and_server() as (kube, server):
        server.answers.append(web.Response(text="<html>"))
        with pytest.raises(Unavailable, match="JSON"):
            await kube.get(Ref(POD, "ns", "a"))
        server.answers.append(web.Response(text='{"a":' * 100_000 + "1" + "}" * 100_000))
        with pytest.raises(Unavailable, match="JSON"):
            await kube.get(Ref(POD, "ns", "a"))
        server.gate.clear()
        with pytest.raises(Unavailable, match=r"no answer in 0\.2 s: GET"):
            await replace(kube, timeout=0.2).get(Ref(POD, "ns", "a"))
    async with KubeServer() as server:
        connection = server.connect()
    async with connection:
        with pytest.raises(Unavailable):
            await Kube(connection).get(Ref(POD, "ns", "a"))


@in_loop
async def test_a_refused_token_is_read_again_and_the_write_happens_once() -> None:
    async with kube_and_server() as (kube, server):
        server.token = "second"
        await asyncio.gather(*(kube.create(pod(f"p{i}")) for i in range(5)))
        assert len(server.objects) == 5
        server.token = "third"
        server.answers += [response(status(401, "Unauthorized")) for _ in range(2)]
        with pytest.raises(Forbidden):
            await kube.get(Ref(POD, "ns", "p0"))


@in_loop
async def test_nothing_of_a_fenced_write_reaches_the_server_and_reads_go_on() -> None:
    def closed() -> None:
        raise Fenced("leads no longer")

    async with kube_and_server(fence=closed) as (kube, server):
        ref = Ref.of(server.put(f"{PODS}/a", pod()))
        for write in (
            kube.apply(pod()),
            kube.create(pod("b")),
            kube.delete(ref),
            kube.patch_status(ref, "1", {}),
            kube.patch_metadata(ref, "1", {}),
        ):
            with pytest.raises(Fenced):
                await write
        await kube.get(ref)
        assert [r.method for r in server.requests] == ["GET"]


@in_loop
async def test_the_fence_is_asked_when_the_request_leaves_not_when_it_is_queued() -> None:
    leads = True

    def fence() -> None:
        if not leads:
            raise Fenced("leads no longer")

    async with kube_and_server(limit=1, fence=fence) as (kube, server):
        server.gate.clear()
        first = asyncio.create_task(kube.create(pod("first")))
        await server.arrived.wait()
        second = asyncio.create_task(kube.create(pod("second")))
        await asyncio.sleep(0)
        leads = False
        server.gate.set()
        await first
        with pytest.raises(Fenced):
            await second
        assert [r.body["metadata"]["name"] for r in server.requests] == ["first"]


@in_loop
async def test_every_call_is_observed_with_its_outcome() -> None:
    calls: list[tuple[str, str, str, float]] = []

    def closed() -> None:
        raise Fenced("leads no longer")

    async with kube_and_server(observe=lambda *call: calls.append(call)) as (kube, server):
        await kube.create(pod())
        with pytest.raises(AlreadyExists):
            await kube.create(pod())
        await kube.list(CONFIG_MAP)
        server.gate.clear()
        with pytest.raises(Unavailable):
            await replace(kube, timeout=0.2).get(Ref(POD, "ns", "a"))
        server.gate.set()
        with pytest.raises(Fenced):
            await replace(kube, fence=closed).apply(pod())
    assert [call[:3] for call in calls] == [
        ("create", "pods", "201"),
        ("create", "pods", "409"),
        ("list", "configmaps", "200"),
        ("get", "pods", "Timeout"),
        ("apply", "pods", "Fenced"),
    ]
    assert all(seconds >= 0 for *_, seconds in calls)
