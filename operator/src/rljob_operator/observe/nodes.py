"""Nodes of the job's pods, and those that its worker pods avoid."""

from rljob_operator import names
from rljob_operator.job import Job
from rljob_operator.observe.snapshot import Snapshot


def node_of(snapshot: Snapshot, host: str, address: str | None = None) -> str | None:
    """The node of the worker pod with this host name or IP address; None if there is no such pod any more.

    A pod of the node's network, or of a template with a host name, has another host name than its own name.
    """
    for pod in snapshot.pods_of(names.WORKER):
        if pod["metadata"]["name"] == host or (address and pod.get("status", {}).get("podIP") == address):
            node: str | None = pod.get("spec", {}).get("nodeName")
            return node
    return None


def excluded(job: Job) -> str:
    """The excluded nodes and how to use them again, for people; empty if there are none."""
    found = ", ".join(each.name for each in job.status.excluded_nodes)
    return (
        f"worker pods avoid {found} (status.excludedNodes); suspend and resume the job to clear this" if found else ""
    )
