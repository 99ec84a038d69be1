"""Who may reach a job's pods, by what the API server has: no program enforces it in the local cluster."""

import json

from e2e.nodes import release
from e2e.scenarios.job import Job
from rljob_operator.head import AGENT_PORT, RAY_PORT
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
