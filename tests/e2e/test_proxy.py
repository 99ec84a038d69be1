"""What the fault-injecting proxy does between a client and a real API server."""

import http.client
import json
import urllib.parse

import pytest

from e2e.cluster.proxy import WRITES, Fault, Proxy, answer, cut_watch, drop, expire_watch, fail_watch, hang
from e2e.cluster.proxy.call import parse
from tests.e2e.waiting import eventually


@pytest.fixture(scope="module")
def running_proxy(cluster):
    with Proxy(cluster) as proxy:
        yield proxy


@pytest.fixture
def proxy(running_proxy):
    running_proxy.calls.clear()
    running_proxy.faults.clear()
    return running_proxy


@pytest.fixture
def config_maps(namespace):
    return f"/api/v1/namespaces/{namespace}/configmaps"


def open_request(proxy, method, path, body=None, seconds=60.0, token=None):
    """The answer, whose body is still to be read. Never tries twice, as other clients may."""
    address = urllib.parse.urlsplit(proxy.url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=seconds)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    connection.request(method, path, json.dumps(body) if body else None, headers)
    return connection.getresponse()


def request(proxy, method, path, body=None, seconds=60.0, token=None):
    """(status, body)"""
    response = open_request(proxy, method, path, body, seconds, token)
    return response.status, json.loads(response.read())


def config_map(name):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


def names(proxy, config_maps):
    _, found = request(proxy, "GET", config_maps)
    return {item["metadata"]["name"] for item in found["items"]} - {"kube-root-ca.crt"}


def watch(proxy, config_maps, **query):
    options = urllib.parse.urlencode({"watch": 1, **query})
    return open_request(proxy, "GET", f"{config_maps}?{options}")


def added(stream):
    event = json.loads(stream.readline())
    return event["type"], event["object"]["metadata"]["name"]


def test_the_second_write_alone_is_answered_with_a_conflict(proxy, config_maps):
    proxy.faults.append(Fault(answer(409), verbs={"create"}, resource="configmaps", nth=2))
    statuses = [request(proxy, "POST", config_maps, config_map(name))[0] for name in ("a", "b", "c")]
    assert statuses == [201, 409, 201]
    assert names(proxy, config_maps) == {"a", "c"}
    assert [(call.status, call.injected) for call in proxy.calls if call.writes] == [
        (201, False),
        (None, True),
        (201, False),
    ]


@pytest.mark.parametrize("landed", [False, True])
def test_a_request_that_hangs_may_have_landed(proxy, config_maps, landed):
    proxy.faults.append(Fault(hang(landed=landed), verbs={"create"}))
    with pytest.raises(TimeoutError):
        request(proxy, "POST", config_maps, config_map("a"), seconds=2.0)
    expected = {"a"} if landed else set()
    eventually(lambda: names(proxy, config_maps) == expected)


@pytest.mark.parametrize("landed", [False, True])
def test_a_broken_connection_may_hide_a_write_that_landed(proxy, config_maps, landed):
    proxy.faults.append(Fault(drop(landed=landed), verbs=WRITES))
    with pytest.raises(ConnectionError):
        request(proxy, "POST", config_maps, config_map("a"))
    assert names(proxy, config_maps) == ({"a"} if landed else set())
    assert proxy.calls[0].status == (201 if landed else None)


def test_a_watch_is_cut_after_some_events(proxy, config_maps):
    proxy.faults.append(Fault(cut_watch(events=2), verbs={"watch"}))
    for name in ("a", "b", "c"):
        request(proxy, "POST", config_maps, config_map(name))
    with watch(proxy, config_maps, resourceVersion="0", fieldSelector="metadata.name!=kube-root-ca.crt") as stream:
        assert {added(stream), added(stream)} < {("ADDED", name) for name in "abc"}
        with pytest.raises(http.client.IncompleteRead):
            stream.read()


@pytest.mark.parametrize(
    ("action", "code", "reason"), [(expire_watch(), 410, "Expired"), (fail_watch(500), 500, "InternalError")]
)
def test_a_watch_expires_or_fails(proxy, config_maps, action, code, reason):
    proxy.faults.append(Fault(action, verbs={"watch"}))
    with watch(proxy, config_maps) as stream:
        event = json.loads(stream.readline())
        assert stream.readline() == b""
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", code, reason)


def test_a_seed_repeats_the_same_faults():
    calls = [parse("GET", f"/api/v1/nodes/{number}", {}) for number in range(64)]
    first, again = (Fault(answer(500), probability=0.5, seed=3) for _ in range(2))
    struck = [first.strikes(call) for call in calls]
    assert struck == [again.strikes(call) for call in calls]
    assert 0 < sum(struck) < len(calls)
