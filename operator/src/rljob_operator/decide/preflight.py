"""What follows from a fabric preflight: the condition, and the nodes that the next RayCluster avoids.

The status names the nodes in the same write as the decision to replace the cluster, so before that goes.
"""

from typing import Any

from rljob_api.conditions import Aspect, Reason
from rljob_api.preflight import FabricPair, PreflightRecord
from rljob_api.v1alpha1 import ExcludedNode
from rljob_api.v1alpha1.status import EXCLUDED
from rljob_operator.observe.facts import Facts
from rljob_operator.observe.nodes import node_of

_NAMED = 3
"""Pairs that a message names."""

_NO_NODE = "no node, so none is excluded; check the fabric and its software"


def excluded_nodes(facts: Facts) -> dict[str, Any]:
    """Changes of the status after a failed attempt. A node that is excluded already stays as it is."""
    record, known = _record(facts), facts.job.status.excluded_nodes
    if record is None or record.passed:
        return {}
    blamed = dict.fromkeys(node_of(facts.seen, each.host, each.address) for each in record.bad_nodes)
    names = [name for name in blamed if name is not None and name not in {each.name for each in known}]
    new = [ExcludedNode(name=name, reason=_reason(record), since=facts.now) for name in names]
    return {"excluded_nodes": [*known, *new][-EXCLUDED:]} if new else {}


def preflight_condition(facts: Facts) -> tuple[bool, str, str] | None:
    """None if the job does not ask, or nothing was measured yet. The last result stays until there is another one."""
    job, before = facts.job, facts.job.condition("PreflightPassed")
    record = _record(facts)
    if job.problem is None and job.spec.preflight.fabric is None:
        return None
    if record is None or job.problem is not None:
        return None if before is None else (before.status == "True", before.reason, before.message)
    named = "; ".join(_words(facts, pair) for pair in record.pairs[: 1 if record.passed else _NAMED])
    if record.passed:
        return True, Aspect.ALL_PAIRS_PASSED, f"Slowest pair: {named}" if named else ""
    more = len(record.pairs) - _NAMED
    named += f"; {more} more" if more > 0 else ""
    blamed = dict.fromkeys(node_of(facts.seen, each.host, each.address) or each.host for each in record.bad_nodes)
    return False, _reason(record), f"Failed pairs: {named}; blamed: {', '.join(blamed) or _NO_NODE}"


def _record(facts: Facts) -> PreflightRecord | None:
    return None if facts.seen.head is None else facts.seen.head.preflight


def _reason(record: PreflightRecord) -> Reason:
    return record.reason or Reason.FABRIC_SLOW


def _words(facts: Facts, pair: FabricPair) -> str:
    """Its nodes, or pods that are gone, and what was measured."""
    nodes = " and ".join(dict.fromkeys(node_of(facts.seen, host) or host for host in pair.hosts))
    speed = "not timed" if pair.bus_bandwidth is None else f"{pair.bus_bandwidth:.3g} GB/s"
    wrong = f", {pair.wrong_elements} wrong elements" if pair.wrong_elements else ""
    return f"{nodes} ({speed}{wrong})"
