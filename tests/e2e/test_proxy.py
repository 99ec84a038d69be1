"""What the fault-injecting proxy does between a client and a real API server."""

import http.client
import json
import socket
import urllib.parse

import pytest

from e2e.cluster.proxy import WRITES, Fault, Proxy, answer, cut_watch, delay, drop, expire_watch, fail_watch, hang, run
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


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("GET", "/version", {}, ("get", "", "", "", "")),
        ("GET", "/api/v1/nodes", {}, ("list", "", "nodes", "", "")),
        ("GET", "/api/v1/nodes/n", {}, ("get", "", "nodes", "", "n")),
        ("POST", "/api/v1/namespaces", {}, ("create", "", "namespaces", "", "")),
        ("GET", "/api/v1/namespaces/a", {}, ("get", "", "namespaces", "", "a")),
        ("PUT", "/api/v1/namespaces/a/finalize", {}, ("update", "", "namespaces/finalize", "", "a")),
        ("GET", "/api/v1/namespaces/a/pods", {"watch": "true"}, ("watch", "", "pods", "a", "")),
        ("POST", "/api/v1/namespaces/a/pods/p/eviction", {}, ("create", "", "pods/eviction", "a", "p")),
        (
            "DELETE",
            "/apis/ray.io/v1/namespaces/a/rayclusters",
            {},
            ("deletecollection", "ray.io", "rayclusters", "a", ""),
        ),
        (
            "PATCH",
            "/apis/rljob.dev/v1alpha1/namespaces/a/rljobs/j/status",
            {},
            ("patch", "rljob.dev", "rljobs/status", "a", "j"),
        ),
    ],
)
def test_a_request_is_named_in_the_terms_of_rbac(method, path, query, expected):
    call = parse(method, path, query)
    assert (call.verb, call.group, call.resource, call.namespace, call.name) == expected


def test_it_passes_requests_on_and_records_them(proxy, config_maps):
    assert request(proxy, "POST", config_maps, config_map("a"))[0] == 201
    assert request(proxy, "POST", config_maps, config_map("a"))[0] == 409
    assert names(proxy, config_maps) == {"a"}
    assert request(proxy, "DELETE", f"{config_maps}/a")[0] == 200
    assert [(call.verb, call.name, call.status) for call in proxy.calls if call.writes] == [
        ("create", "", 201),
        ("create", "", 409),
        ("delete", "a", 200),
    ]


def test_it_passes_a_watch_on_event_by_event(proxy, config_maps):
    with watch(proxy, config_maps, resourceVersion="0", fieldSelector="metadata.name!=kube-root-ca.crt") as stream:
        for name in ("a", "b"):
            request(proxy, "POST", config_maps, config_map(name))
            assert added(stream) == ("ADDED", name)


def test_a_kubernetes_client_works_through_it(proxy, namespace, tmp_path):
    through = proxy.access(tmp_path / "kubeconfig")
    through.kubectl("create", "configmap", "a", f"--namespace={namespace}")
    assert [call.path for call in proxy.calls if call.writes] == [f"/api/v1/namespaces/{namespace}/configmaps"]


def test_a_service_account_has_the_rights_of_its_roles_and_no_others(cluster, namespace, config_maps, tmp_path):
    in_namespace = f"--namespace={namespace}"
    cluster.kubectl("create", "serviceaccount", "operator", in_namespace)
    cluster.kubectl("create", "role", "reader", "--verb=list", "--resource=configmaps", in_namespace)
    account = f"--serviceaccount={namespace}:operator"
    cluster.kubectl("create", "rolebinding", "reader", "--role=reader", account, in_namespace)
    with Proxy(cluster.as_service_account(namespace, "operator", tmp_path / "kubeconfig")) as proxy:
        eventually(lambda: request(proxy, "GET", config_maps)[0] == 200)  # the API server learns of roles by a watch
        status, refusal = request(proxy, "POST", config_maps, config_map("a"))
        assert status == 403
        assert f"system:serviceaccount:{namespace}:operator" in refusal["message"]
        assert request(proxy, "GET", config_maps, token="of somebody else")[0] == 401


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


@pytest.mark.parametrize(("status", "reason"), [(429, "TooManyRequests"), (500, "InternalError"), (410, "Expired")])
def test_an_answer_looks_like_the_api_server_s(proxy, config_maps, status, reason):
    proxy.faults.append(Fault(answer(status, retry_after=7)))
    with open_request(proxy, "GET", config_maps) as response:
        body = json.loads(response.read())
        assert (response.status, response.headers["Retry-After"]) == (status, "7")
    assert (body["kind"], body["code"], body["reason"]) == ("Status", status, reason)


def test_a_delayed_request_is_answered_later(proxy, config_maps):
    proxy.faults.append(Fault(delay(2.0), nth=1))
    with pytest.raises(TimeoutError):
        request(proxy, "GET", config_maps, seconds=0.5)
    assert proxy.calls[0].status is None
    proxy.faults = [Fault(delay(0.1))]
    assert names(proxy, config_maps) == set()


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


def test_a_callback_strikes_at_the_nth_write(proxy, config_maps):
    struck = []
    proxy.faults.append(Fault(run(lambda: struck.append(len(proxy.calls)), landed=True), verbs=WRITES, nth=2))
    request(proxy, "POST", config_maps, config_map("a"))
    with pytest.raises(ConnectionError):
        request(proxy, "POST", config_maps, config_map("b"))
    assert struck == [2]
    assert names(proxy, config_maps) == {"a", "b"}


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


def test_the_port_is_free_when_it_is_closed(cluster):
    with Proxy(cluster) as proxy, watch(proxy, "/api/v1/namespaces") as stream:
        added(stream)
    address = urllib.parse.urlsplit(proxy.url)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address.hostname, address.port))
