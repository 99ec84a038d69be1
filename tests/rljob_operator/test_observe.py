"""What of a namespace belongs to a job."""

import asyncio
from typing import Any, cast

import pytest

from rljob_operator import names
from rljob_operator.head.heads import Heads
from rljob_operator.kube.kinds import CONFIG_MAP, DEPLOYMENT, POD, RAY_CLUSTER, RLJOB, VOLUME_CLAIM, Key, Manifest
from rljob_operator.observe.gather import observe
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.runtime.store import Store
from tests.rljob_operator.snapshots import NOW, PODS, UID, deployment, manifest, pod, ray_cluster

OWNER = [{"uid": UID, "controller": True, "kind": "RLJob", "name": "job"}]
OTHER_OWNER = [{"uid": "other", "controller": True, "kind": "Deployment", "name": "board"}]


def child(name: str, **metadata: Any) -> Manifest:
    return {"metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": "3", **metadata}}


def labelled(found: Manifest) -> Manifest:
    metadata = found["metadata"]
    return found | {"metadata": metadata | {"labels": metadata.get("labels", {}) | dict(names.labels("job"))}}


def observed(*found: tuple[Any, Manifest]) -> Snapshot:
    store = Store()
    store.put(RLJOB, manifest())
    for kind, each in found:
        store.put(kind, labelled(each))
    snapshot = asyncio.run(observe(store, cast(Heads, None), Key("team", "job"), lambda: NOW))
    assert snapshot is not None
    return snapshot


BOARD = pod("board-x", "board")
del BOARD["metadata"]["labels"]
BEFORE = [{**OWNER[0], "uid": "before"}]

LABELLED = [
    ("what the operator made", 3, ["job", "job-checkpoints", "job-job", "job-rm-rm"], [
        (RAY_CLUSTER, ray_cluster()), (DEPLOYMENT, deployment("rm", 1)), (VOLUME_CLAIM, child("job-checkpoints")),
        (CONFIG_MAP, child("job-job", ownerReferences=OWNER)), *((POD, each) for each in PODS),
    ]),
    ("what a user labelled, to be let in by the NetworkPolicy", 0, [], [
        (CONFIG_MAP, child("mine")), (DEPLOYMENT, child("board")), (VOLUME_CLAIM, child("scratch")),
        (CONFIG_MAP, child("another", ownerReferences=OTHER_OWNER)), (POD, BOARD),
    ]),
    ("what an earlier job of the name left", 0, ["job-job"], [(CONFIG_MAP, child("job-job", ownerReferences=BEFORE))]),
]  # fmt: skip


@pytest.mark.parametrize(("pods", "names_", "found"), [row[1:] for row in LABELLED], ids=[row[0] for row in LABELLED])
def test_what_is_labelled_like_the_job_is_its_own_if_the_operator_made_it(pods, names_, found):
    seen = observed(*found)
    assert sorted(name for each in seen.children.values() for name in each) == names_
    assert len(seen.pods) == pods
