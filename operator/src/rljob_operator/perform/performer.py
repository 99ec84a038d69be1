"""Carry out a plan. Each write is harmless if it is repeated or late, so a death between two of them loses nothing but
events. Those come last: an event before a write may report what a conflict then prevents, and a namespace that limits
events must not stop a job.

finalizer, deletions, freed quota ──> what pods need, all of it at once ──> what has pods ──> the driver's start or stop
                                                                        events <── one status patch <──┘
                                   what Kueue has to know besides <────────┘
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from rljob_api.conditions import Note
from rljob_api.v1alpha1 import RLJobStatus
from rljob_operator import names
from rljob_operator.head.errors import HeadError
from rljob_operator.head.heads import Heads
from rljob_operator.job import Job
from rljob_operator.kube import client, events
from rljob_operator.kube.errors import AlreadyExists, Conflict, Forbidden, Invalid, KubeError, NotFound, Unavailable
from rljob_operator.kube.kinds import POD, RLJOB, Key, Kind, Manifest
from rljob_operator.observe.leaving import SOON_SECONDS
from rljob_operator.observe.snapshot import Snapshot, role_of
from rljob_operator.perform.children import Children
from rljob_operator.perform.errors import Refused, refusals
from rljob_operator.plan import Event, Patch, Plan
from rljob_operator.render.sources import quoted
from rljob_operator.runtime.logging import severity
from rljob_operator.runtime.store import Store

__all__ = ["Performer", "Refused"]

log = structlog.get_logger()


class Performer:
    """It also puts what it writes into the store: the next decision must not rest on an older version."""

    def __init__(self, kube: client.Kube, heads: Heads, store: Store) -> None:
        self._kube, self._heads, self._store = kube, heads, store
        self._children = Children(kube, self._seen)

    async def perform(self, snapshot: Snapshot, plan: Plan) -> None:
        """Raises KubeErrors, HeadErrors and Refused; the same plan may be tried again. After it returns
        everything is done, except events that were refused.
        """
        job = snapshot.job
        with refusals(job.resource_version, Invalid, Forbidden, Unavailable):
            version = await self._finalize(job, present=plan.finalizer)
        with refusals(version, Forbidden, Unavailable):
            await self._delete(snapshot, plan)
        with refusals(version, Invalid, Forbidden, Unavailable):
            await self._change(job.ref.key, [patch for patch in plan.patch if patch.frees])
        with refusals(version, Invalid, Forbidden, AlreadyExists, NotFound, Unavailable):
            await self._children.make(snapshot, plan, lambda *fields: self._post_ignored(job, *fields))
        await self._call_head(job, plan, version)
        if plan.written is not None:
            await self._post(job, plan.events, await self._write_status(job, version, plan.written))
        await self._change(job.ref.key, [patch for patch in plan.patch if not patch.frees])  # it keeps nothing waiting

    async def release(self, job: Key, patches: Sequence[Patch]) -> None:
        """Free the quota of a job that has gone. Raises KubeErrors. Nothing if the API server has the job: its watch
        is late.
        """
        if patches and not (await self._kube.list(RLJOB, job.namespace, name=job.name)).items:
            await self._change(job, patches)

    async def _delete(self, snapshot: Snapshot, plan: Plan) -> None:
        """Short grace periods come first: a node keeps to the first that it hears, for example from their owner's."""
        for refs, grace_period in ((plan.short_grace, SOON_SECONDS), (plan.delete, None), (plan.force, 0)):
            for ref in refs:
                await self._kube.delete(ref, grace_period)
                self._store.goes(ref, snapshot.now)

    async def _change(self, job: Key, patches: Iterable[Patch]) -> None:
        """Raises Conflict if quota would be freed too early: a pod's watch may be late, and Kueue gives quota away at
        once.
        """
        for patch in patches:
            if patch.frees and (pods := await self._pods(job)):
                raise Conflict(f"{len(pods)} pods of the job still need its quota", reason="Conflict")
            changed = await self._kube.patch(patch.ref, patch.version, patch.change, patch.subresource)
            self._seen(patch.ref.kind, changed)

    async def _pods(self, job: Key) -> list[Manifest]:
        found = await self._kube.list(POD, job.namespace, f"{names.JOB_LABEL}={job.name}")
        ours = [pod for pod in found.items if role_of(pod) in names.ROLES]
        for pod in ours:
            self._store.put(POD, pod)
        return ours

    async def _call_head(self, job: Job, plan: Plan, version: str) -> None:
        """A head accepts calls from any process with its tokens, and a stop names no attempt: a late one would reach a
        newer driver. So each call asks the fence first.
        """
        if plan.submit is not None:
            self._kube.fence()
            with refusals(version, HeadError):
                await self._heads.submit(job, plan.submit)
        if plan.stop:
            self._kube.fence()
            await self._heads.stop(job)
        if plan.end is not None:
            self._kube.fence()
            with refusals(version, HeadError):
                await self._heads.end(job, plan.end)

    async def _finalize(self, job: Job, *, present: bool | None) -> str:
        """The job's resourceVersion afterwards."""
        has = names.FINALIZER in job.finalizers
        if present is None or present == has:
            return job.resource_version
        others = [each for each in job.finalizers if each != names.FINALIZER]
        finalizers = [*others, names.FINALIZER] if present else others
        try:
            patched = await self._kube.patch_metadata(job.ref, job.resource_version, {"finalizers": finalizers})
        except NotFound:
            if present:
                raise  # nothing is created for a job that is gone
            return job.resource_version  # an earlier patch removed the last finalizer of a deleted job
        self._seen(RLJOB, patched)
        return str(patched["metadata"]["resourceVersion"])

    async def _write_status(self, job: Job, version: str, status: RLJobStatus) -> str:
        """The job's resourceVersion afterwards."""
        patch = _difference(_written(job.status), _written(status))
        patched = await self._kube.patch_status(job.ref, version, patch)
        self._seen(RLJOB, patched)
        return str(patched["metadata"]["resourceVersion"])

    async def _post_ignored(self, job: Job, sent: Manifest, unknown: list[str], made: Manifest) -> None:
        name = f"{sent['kind']} {sent['metadata']['name']}"
        fields = quoted(job, "; ".join(unknown))
        message = f"{name} was created without fields that the API server does not know: {fields}"
        # With the version of what was created: the job's version has events of its own.
        await self._post(job, [Event(Note.FIELD_IGNORED, message, warning=True)], made["metadata"]["resourceVersion"])

    async def _post(self, job: Job, found: Iterable[Event], version: str) -> None:
        """What they report is done, so an event that is refused stops nothing."""
        at = datetime.now(UTC)
        try:
            for place, event in enumerate(found):  # in the order of their times, whatever the clock does
                when = at + timedelta(microseconds=place)
                about = (job.ref, event.reason, event.message, "Reconcile", when, version, place, event.warning)
                await self._kube.post_event(events.Event(*about))
        except KubeError as error:
            log.log(severity(error), "events_not_posted", job=f"{job.namespace}/{job.name}", error=str(error))

    def _seen(self, kind: Kind, manifest: Manifest) -> None:
        if "deletionTimestamp" not in manifest["metadata"] or manifest["metadata"].get("finalizers"):
            self._store.put(kind, manifest)
        elif kind != RLJOB:  # it is gone with its last finalizer
            self._store.remove(kind, manifest)


def _written(status: RLJobStatus) -> Manifest:
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Manifest:
    """A JSON merge patch from `old` to `new`."""
    patch: Manifest = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            if inner := _difference(before, value):
                patch[key] = inner
        elif before != value:
            patch[key] = value
    return patch
