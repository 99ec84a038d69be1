"""Argo CD's health check of RLJobs, over statuses of the operator, in a Lua that offers no more than Argo CD's."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from lupa.lua51 import LuaRuntime

from rljob_api.contract import ExitRecord
from rljob_operator import names
from rljob_operator.head.ray_jobs import RayJobState
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.settings import Settings
from tests.rljob_operator.decisions import decide
from tests.rljob_operator.snapshots import (
    NOW,
    PODS,
    SETTINGS,
    attempted,
    job,
    manifest,
    pod,
    ray_cluster,
    reports,
    snapshot,
)

CONFIG = Path(__file__).parents[2] / "charts/argocd/argocd-cm.yaml"
SCRIPT: str = yaml.safe_load(CONFIG.read_text())["data"]["resource.customizations.health.rljob.dev_RLJob"]

MISSING_LIBRARIES = "string, math, io, debug, coroutine, getmetatable('').__index = nil"
"""Argo CD runs Lua 5.1 with the basic functions and `table` alone, unless it is told otherwise."""

NO_IMAGE = SETTINGS.model_copy(update={"trainer_image": None})


def health(live: Mapping[str, Any]) -> tuple[str, str]:
    lua = LuaRuntime()
    lua.execute(MISSING_LIBRARIES)
    lua.globals().obj = lua.table_from(live, recursive=True)
    answer = dict(lua.execute(SCRIPT))
    assert set(answer) == {"status", "message"}
    return answer["status"], answer["message"]


def live(seen: Snapshot, settings: Settings = SETTINGS) -> dict[str, Any]:
    """The object as the API server holds it once the operator has done what it decides."""
    status = decide(seen, settings).status
    assert status is not None
    return manifest(status.model_dump(mode="json", by_alias=True, exclude_none=True))


def starting(ready: int, **given: Any) -> Snapshot:
    return snapshot(cluster=ray_cluster(ready, provisioned=False), **given)


def running(base: Any = None, **given: Any) -> Snapshot:
    return snapshot(
        base, **{"cluster": ray_cluster(), "pods": PODS, "head": reports(), **attempted("Submitted")} | given
    )


def ended(code: int, reason: str, state: RayJobState = RayJobState.FAILED) -> Snapshot:
    return running(head=reports(state, exit=ExitRecord(code=code, reason=reason, message="words")))


def without_its_image() -> Snapshot:
    waiting = {"reason": "ImagePullBackOff", "message": "trainer:1 not found"}
    statuses = [{"name": "ray-worker", "image": "trainer:1", "state": {"waiting": waiting}}]
    return starting(0, pods=[pod("w", names.WORKER, "Pending", containerStatuses=statuses)])


SUSPENDED = job(suspend=True)

CASES = {
    "new": (live(snapshot()), "Progressing", "ClusterNotReady: 0 of 2 workers ready"),
    "pods on the way": (live(starting(1, pods=PODS)), "Progressing", "ClusterNotReady: 1 of 2 workers ready"),
    "no image is named": (live(snapshot(), NO_IMAGE), "Degraded", "ImageMissing: No image is set."),
    "no such image": (live(without_its_image()), "Degraded", "ImageNotUsable: w: ImagePullBackOff of image trainer:1"),
    "running": (live(running()), "Healthy", "DriverRunning: Attempt 1 runs"),
    "running, the head is silent": (live(running(head=None)), "Healthy", "DriverRunning: Attempt 1 runs; Ray's head"),
    "recovering": (live(ended(75, "RankLost")), "Progressing", "RankLost: Restarting the driver"),
    "failed": (live(ended(64, "JobError")), "Degraded", "JobError: "),
    "succeeded": (live(ended(0, "Completed", RayJobState.SUCCEEDED)), "Healthy", "Completed: words"),
    "being suspended": (live(running(SUSPENDED)), "Progressing", "Suspended: spec.suspend is true; the driver is"),
    "suspended": (live(snapshot(SUSPENDED)), "Suspended", "Suspended: spec.suspend is true"),
    "being deleted": (live(running(replace(job(), deleted=NOW))), "Progressing", "Deleting: Waiting for 3 pods to end"),
    "nobody has seen it": (manifest(), "Progressing", "the operator has not seen this version yet"),
    "another controller's": (manifest({"observedGeneration": 3, "phase": "Queued"}), "Progressing", "Queued: "),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_health_follows_what_the_operator_says(case: str) -> None:
    found, expected, message = CASES[case]
    status, words = health(found)

    assert status == expected
    assert words.startswith(message)


def test_a_change_of_the_spec_counts_only_once_the_operator_has_seen_it() -> None:
    found = live(running())
    found["metadata"]["generation"] += 1

    assert health(found) == ("Progressing", "the operator has not seen this version yet")


def test_a_job_of_another_manager_is_not_waited_for() -> None:
    theirs = manifest(managedBy="kueue.x-k8s.io/multikueue")
    assert health(theirs) == ("Healthy", "left to kueue.x-k8s.io/multikueue, by spec.managedBy")
    ours = manifest(managedBy=names.MANAGER_NAME)
    assert health(ours)[0] == "Progressing"
