"""Who may do what: pods have no way into the API server, and no request enters pods without their token."""

import json

import pytest

from e2e.cluster.access import Access
from e2e.cluster.errors import ClusterError
from e2e.nodes import release
from e2e.nodes.images import TRAINER
from e2e.scenarios.conftest import own_cluster_only
from e2e.scenarios.job import LONG, Job
from e2e.scenarios.policy import guarded, with_token
from rljob_operator.head.address import AGENT_PORT, RAY_PORT

pytestmark = pytest.mark.timeout(1200)

ASK = """
import sys, urllib.error, urllib.request
for each in sys.argv[1:]:
    method, url = each.split()
    body = b'{"entrypoint": "true"}' if method == "POST" else None
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
    try:
        print(urllib.request.urlopen(request, timeout=10).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""

ASKED = (
    ("GET", AGENT_PORT, "/v1/progress"), ("GET", AGENT_PORT, "/metrics"),
    ("POST", AGENT_PORT, "/v1/checkpoint?stop=true"),
    ("GET", RAY_PORT, "/api/jobs/"), ("POST", RAY_PORT, "/api/jobs/"), ("GET", RAY_PORT, "/api/version"),
)  # fmt: skip
"""What tells of a job, stops it, or has a head run anything."""

STRANGER = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "stranger"},
    "spec": {"containers": [{"name": "stranger", "image": TRAINER, "command": ["sleep", "600"]}]},
}


@own_cluster_only("runs an image that is built here, outside of the namespace of the test")
def test_pods_have_no_token_and_want_one(cluster: Access, job: Job) -> None:
    job.apply(**LONG)
    job.trains()
    pods = guarded(job)
    assert pods == {*job.pods("head"), *job.pods("worker")}
    assert with_token(job, pods) == []

    (head,) = json.loads(
        job.kubectl("get", "pods", f"--selector=rljob.dev/job={job.name},rljob.dev/role=head", "--output=json")
    )["items"]
    asked = [f"{method} http://{head['status']['podIP']}:{port}{path}" for method, port, path in ASKED]
    assert refused(job.run_in("worker", "python", "-c", ASK, *asked))

    cluster.kubectl("apply", "--namespace=default", "--filename=-", objects=json.dumps(STRANGER))
    try:
        cluster.kubectl("wait", "pod/stranger", "--namespace=default", "--for=condition=Ready", "--timeout=60s")
        assert refused(cluster.kubectl("exec", "stranger", "--namespace=default", "--", "python", "-c", ASK, *asked))
    finally:
        cluster.kubectl("delete", "pod", "stranger", "--namespace=default", "--force", "--grace-period=0")


def refused(codes: str) -> bool:
    """Whether all that was ASKED was."""
    return len(codes.split()) == len(ASKED) and set(codes.split()) <= {"401", "403"}


@own_cluster_only("acts as the operator, which may have another name elsewhere")
def test_the_operator_reads_no_secret_but_its_key(cluster: Access, job: Job) -> None:
    """The jobs' own tokens it derives from that key."""

    def readable(namespace: str) -> list[str]:
        names = cluster.kubectl("get", "secrets", f"--namespace={namespace}", "--output=name").split()
        return [name for name in names if _allowed(cluster, "get", name, namespace)]

    job.apply()
    job.eventually(lambda: job.kubectl("get", "secrets", "--output=name"), "Secret of the job")
    assert readable(release.NAMESPACE) == ["secret/rljob-operator-key"]
    assert readable(job.namespace) == []
    assert _may(cluster, "get", "secrets/rljob-operator-key", release.NAMESPACE)
    for namespace in (release.NAMESPACE, job.namespace, "default", "kube-system"):
        for verb in ("get", "list", "watch"):
            assert not _may(cluster, verb, "secrets", namespace), "all at once"


ACCOUNT = f"--as=system:serviceaccount:{release.NAMESPACE}:rljob-operator"


def _may(cluster: Access, verb: str, what: str, namespace: str) -> bool:
    """Whether the operator's account may, by the API server's own word: `no` ends kubectl with an error."""
    try:
        return cluster.kubectl("auth", "can-i", verb, what, f"--namespace={namespace}", ACCOUNT).strip() == "yes"
    except ClusterError:
        return False


def _allowed(cluster: Access, verb: str, what: str, namespace: str) -> bool:
    """For the operator's account."""
    try:
        cluster.kubectl(verb, what, f"--namespace={namespace}", ACCOUNT, "--output=name")
    except ClusterError as error:
        if "Forbidden" in str(error):
            return False
        raise
    return True
