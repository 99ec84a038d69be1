"""Which pods may reach a job's pods, and how many of those may be evicted at once."""

from typing import Any

from rljob_api import RLJobSpec
from rljob_operator.head.address import AGENT_PORT, RAY_PORT
from rljob_operator.kube.kinds import DISRUPTION_BUDGET, NETWORK_POLICY
from rljob_operator.names import HEAD, JOB_LABEL, ROLE_LABEL, WORKER


def network_policy(job: str, operator_namespace: str, monitoring_namespace: str | None) -> dict[str, Any]:
    """The job's pods reach each other, the operator's namespace reaches Ray and the agent, and Prometheus' namespace
    the agent. All pods of those namespaces may: their labels depend on charts, and Ray and the agent require tokens.
    """
    pods = {"podSelector": {"matchLabels": {JOB_LABEL: job}}}
    ingress: list[dict[str, Any]] = [{"from": [pods]}, _from(operator_namespace, RAY_PORT, AGENT_PORT)]
    if monitoring_namespace is not None:
        ingress.append(_from(monitoring_namespace, AGENT_PORT))
    return NETWORK_POLICY.manifest({"name": job}, spec={**pods, "policyTypes": ["Ingress"], "ingress": ingress})


def _from(namespace: str, *ports: int) -> dict[str, Any]:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    return {"from": [peer], "ports": [{"protocol": "TCP", "port": port} for port in ports]}


_OF_RAY = {"matchExpressions": [{"key": ROLE_LABEL, "operator": "In", "values": [HEAD, WORKER]}]}
"""Without a reward model's pod the trainer waits."""


def disruption_budget(job: str, spec: RLJobSpec, *, trains: bool) -> dict[str, Any]:
    """While a job trains, one of its pods may be evicted, which ends the attempt with a checkpoint. Then the others may
    follow at once: they may be on the same node, and no other node may have room for the first one's successor.
    """
    available = spec.cluster.nodes if trains else 0
    selector = {"matchLabels": {JOB_LABEL: job}, **_OF_RAY}
    # maxUnavailable asks for an owner with a scale subresource, which a RayCluster has not.
    return DISRUPTION_BUDGET.manifest({"name": job}, spec={"minAvailable": available, "selector": selector})
