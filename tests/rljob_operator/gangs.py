"""Jobs whose pods start together, and what is decided for them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rljob_operator.job import Job
from rljob_operator.kube.kinds import POD_GROUPS, Manifest
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.plan import Plan
from rljob_operator.render import pod_group_of
from tests.rljob_operator import queues
from tests.rljob_operator.decisions import decide, ended, living
from tests.rljob_operator.snapshots import NOW, PODS, REWARDS, SERVED, SETTINGS, attempted, job, snapshot, stamp


def gang(scheduler: str, **spec: Any) -> Job:
    return job(gang={"scheduler": scheduler}, **spec)


def group(base: Job, **metadata: Any) -> Manifest:
    """The job's PodGroup, as the API server has it."""
    made = pod_group_of(base, SETTINGS)
    assert made is not None
    return made | {"metadata": made["metadata"] | {"uid": "g-1", "resourceVersion": "30", **metadata}}


def beside(seen: Snapshot, found: Manifest | None, *missing: str) -> Snapshot:
    """missing: schedulers."""
    kinds = {kind: {"job": found} for kind in POD_GROUPS.values() if found and kind.api_version == found["apiVersion"]}
    lacks = seen.missing | {POD_GROUPS[each] for each in missing}
    return replace(seen, children={**seen.children, **kinds}, missing=lacks)


def plan_of(base: Job, found: Manifest | None = None, *missing: str, **given: Any) -> Plan:
    return decide(beside(snapshot(base, **given), found, *missing))


def gangs() -> Iterator[tuple[str, Plan]]:
    volcano, native, leaving = gang("volcano"), gang("native"), {"deletionTimestamp": stamp(NOW)}
    for scheduler in POD_GROUPS:
        yield f"gang of {scheduler}, new", plan_of(gang(scheduler, rewards=REWARDS))
        yield f"gang of {scheduler}, which is missing", plan_of(gang(scheduler), None, scheduler)
        yield f"gang of {scheduler}, running", plan_of(base := gang(scheduler), group(base), **living())
    yield "gang, its scheduler is removed", plan_of(volcano, None, "volcano", **living())
    yield "gang, its PodGroup is deleted while it runs", plan_of(volcano, **living())
    yield "gang, the previous PodGroup leaves", plan_of(volcano, group(volcano, **leaving))
    larger = group(gang("native", cluster={"nodes": 7}))
    yield "gang of another size before", plan_of(native, larger)
    yield "gang of another size, running", plan_of(native, larger, **living())
    served = gang("native", rewards=REWARDS)
    yield "gang, the previous PodGroup leaves, reward models run", plan_of(
        served, group(served, **leaving), models=SERVED, **attempted("Ended", phase="Recovering")
    )  # fmt: skip
    yield "gang of another scheduler before", plan_of(volcano, group(native))
    yield "gang no more", plan_of(job(), group(volcano))
    paused = gang("volcano", suspend=True)
    over = attempted("Ended", phase="Suspending")
    yield "gang, suspended, pods are ending", plan_of(paused, group(paused), pods=PODS, **over)
    yield "gang, suspended, nothing runs", plan_of(paused, group(paused), **over)
    yield (
        "gang, rebuilt beside its reward models",
        plan_of(
            base := gang("volcano", rewards=REWARDS),
            group(base),
            models=SERVED,
            **attempted("Ended", phase="Recovering"),
        ),
    )
    yield "gang, done", plan_of(volcano, group(volcano), **ended(0, "Completed"))
    yield "gang, done, without pods", plan_of(volcano, group(volcano), **queues.DONE)
    yield "gang, deleted, without pods", plan_of(replace(volcano, deleted=NOW), group(volcano))


def queued() -> Iterator[tuple[str, Plan]]:
    base = queues.queued_job(gang={"scheduler": "volcano"})
    found, over = group(base), attempted("Ended", phase="Suspending") | queues.evicted_before()

    def plan(asked: Manifest | None, found: Manifest | None = None, *missing: str, **given: Any) -> Plan:
        return decide(beside(queues.seen(asked, base=base, **given), found, *missing))

    yield "gang in a queue, its scheduler is missing", plan(None, None, "volcano")
    yield (
        "gang in a queue, admitted, its scheduler is missing",
        plan(queues.workload(admitted=True, base=base), None, "volcano"),
    )
    yield "gang in a queue, waits for quota", plan(queues.workload(base=base))
    yield "gang in a queue, admitted", plan(queues.workload(admitted=True, base=base))
    evicted = queues.evicted(base=base)
    yield "gang in a queue, evicted, pods are ending", plan(evicted, found, pods=PODS, **over)
    yield "gang in a queue, evicted, nothing runs", plan(evicted, found, **over)


GROUPS = (gangs, queued)
