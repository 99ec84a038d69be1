"""What is decided when the head of a RayCluster is lost before any attempt was made on it: tables over snapshots."""

from dataclasses import replace
from typing import Any

import pytest

from rljob_operator import names
from tests.rljob_operator.decisions import decide, phase, plan_for
from tests.rljob_operator.snapshots import SETTINGS, attempted, conditions, job, pod, ray_cluster, snapshot

NEW: dict[str, Any] = {"cluster": ray_cluster(-1, uid="another"), "pods": [pod("head", names.HEAD, "Failed")]}
WAITED = [("new", {}, 0), ("of a later attempt", attempted("Ended", phase="Starting"), 1)]


@pytest.mark.parametrize(("given", "number"), [row[1:] for row in WAITED], ids=[row[0] for row in WAITED])
def test_a_head_that_is_lost_before_the_next_attempt_costs_a_wait_alone_and_is_judged_once(given, number):
    """The last attempt's driver has ended with another RayCluster: what is lost now is not that one."""
    lost = plan_for(base=job(recovery={"maxRestarts": 0}), **NEW, **given)
    assert (lost.restart, phase(lost), conditions(lost.status)["Ready"]) == (None, "Recovering", ("False", "RayLost"))
    assert lost.status is not None
    assert (lost.status.restarts, lost.status.recovery.charged, lost.status.attempt) == (0, 0, number)
    assert lost.status.recovery.cluster_uid == "another"

    again = decide(snapshot(replace(job(), status=lost.status), **NEW), SETTINGS)
    assert (again.restart, [each.uid for each in again.delete]) == (None, ["another"])


def test_each_further_one_is_waited_for_longer():
    """Workers that a quota refuses count for nothing in RayClusterProvisioned, and their job may wait for days."""
    waits: list[float] = []
    status = job().status
    for number in range(8):
        seen = snapshot(replace(job(), status=status), cluster=ray_cluster(-1, uid=f"{number}"))
        lost = decide(seen, SETTINGS).status
        assert lost is not None
        assert (lost.phase, lost.restarts) == ("Recovering", 0)
        assert lost.recovery.decided is not None
        assert lost.recovery.not_before is not None
        waits.append((lost.recovery.not_before - lost.recovery.decided).total_seconds())
        status = lost
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (0.0, 60.0)
