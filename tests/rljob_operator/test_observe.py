"""What of a namespace belongs to a job."""

import asyncio
from typing import Any, cast

from rljob_operator import names
from rljob_operator.head.heads import Heads
from rljob_operator.kube.kinds import CONFIG_MAP, DEPLOYMENT, POD, RAY_CLUSTER, RLJOB, VOLUME_CLAIM, Key, Manifest
from rljob_operator.observe.gather import observe
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.runtime.store import Store
from tests.rljob_operator.snapshots import NOW, PODS, UID, deployment, manifest, pod, ray_cluster

OWNER = [{"uid": UID, "controller": True, "kind": "RLJob", "name": "job"}]
SOMEBODY = [{"uid": "other", "controller": True, "kind": "Deployment", "name": "board"}]


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


def test_what_the_operator_made_is_the_job_s():
    seen = observed(
        (RAY_CLUSTER, ray_cluster()), (DEPLOYMENT, deployment("rm", 1)), (VOLUME_CLAIM, child("job-checkpoints")),
        (CONFIG_MAP, child("job-job", ownerReferences=OWNER)), *((POD, each) for each in PODS),
    )  # fmt: skip

    assert sorted(name for each in seen.children.values() for name in each) == [
        "job", "job-checkpoints", "job-job", "job-rm-rm",
    ]  # fmt: skip
    assert len(seen.pods) == 3


def test_what_somebody_labelled_like_the_job_is_left_alone():
    """A pod that wants to be let in by the job's NetworkPolicy has to carry its label."""
    board = pod("board-x", "board")
    del board["metadata"]["labels"]
    seen = observed(
        (CONFIG_MAP, child("mine")), (DEPLOYMENT, child("board")), (VOLUME_CLAIM, child("scratch")),
        (CONFIG_MAP, child("another", ownerReferences=SOMEBODY)), (POD, board),
    )  # fmt: skip

    assert not any(seen.children.values())
    assert seen.pods == []


def test_what_an_earlier_job_of_the_name_left_is_seen():
    before = [{**OWNER[0], "uid": "before"}]
    seen = observed((CONFIG_MAP, child("job-job", ownerReferences=before)))

    assert list(seen.children[CONFIG_MAP]) == ["job-job"]
