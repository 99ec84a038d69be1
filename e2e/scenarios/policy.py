"""Who may reach a job's pods, by what the API server has, for no program enforces it in the local cluster; and whether
they are anybody to the API server.
"""

import json
from collections.abc import Iterable

from e2e.nodes import release
from e2e.scenarios.job import Job
from rljob_operator.head.address import AGENT_PORT, RAY_PORT
from rljob_operator.names import JOB_LABEL

OPERATOR = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": release.NAMESPACE}}}


def guarded(job: Job) -> set[str]:
    """Pods, as kubectl names them, that only each other may reach, and the operator's namespace Ray and the agent.

    Raises AssertionError where others are let in; policies add up, so there may be no second one.
    """
    (policy,) = json.loads(job.kubectl("get", "networkpolicies", "--output=json"))["items"]
    own = {"matchLabels": {JOB_LABEL: job.name}}
    ports = [{"protocol": "TCP", "port": port} for port in (RAY_PORT, AGENT_PORT)]
    expected = {
        "podSelector": own,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": own}]}, {"from": [OPERATOR], "ports": ports}],
    }
    if policy["spec"] != expected:
        raise AssertionError(f"others are let in, or not all of these: {policy['spec']}")
    selector = ",".join(f"{name}={value}" for name, value in policy["spec"]["podSelector"]["matchLabels"].items())
    return set(job.kubectl("get", "pods", f"--selector={selector}", "--output=name").split())


LIST_TOKENS = "ls /var/run/secrets/kubernetes.io 2>&1 || true"
"""Where a container finds the token of its account, if it has one."""


def with_token(job: Job, pods: Iterable[str]) -> list[str]:
    """Of these pods' containers those that find a token: POD CONTAINER. All of them run."""
    names = "--output=jsonpath={.spec.containers[*].name}"
    containers = [(pod, each) for pod in pods for each in job.kubectl("get", pod, names).split()]
    listed = {
        f"{pod} {each}": job.kubectl("exec", pod, f"--container={each}", "--", "sh", "-c", LIST_TOKENS)
        for pod, each in containers
    }
    return [name for name, told in listed.items() if "No such file" not in told]
