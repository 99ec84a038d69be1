"""Carry out a plan. Each write is harmless when it is repeated or late, so a death between any two loses nothing but
events: those come last, for who tells first may tell what a conflict then keeps from happening, and who cannot tell,
as where events are limited, must go on all the same.

finalizer, deletions ──> what pods need, all of it at once ──> what has pods ──> the driver's start or stop
                                                                        events <── one status patch <──┘
"""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

import structlog

from rljob_api.v1alpha1 import RLJobStatus
from rljob_operator import names
from rljob_operator.decide.fields import ignored
from rljob_operator.head import HeadError, head_service
from rljob_operator.head.heads import Heads
from rljob_operator.job import Job
from rljob_operator.kube import client, events
from rljob_operator.kube.errors import AlreadyExists, Forbidden, Invalid, KubeError, NotFound, Unavailable
from rljob_operator.kube.kinds import (
    DEPLOYMENT,
    POD,
    RAY_CLUSTER,
    RLJOB,
    SECRET,
    SERVICE,
    VOLUME_CLAIM,
    Key,
    Manifest,
    Ref,
)
from rljob_operator.observe.gather import is_ours
from rljob_operator.observe.snapshot import SOON_SECONDS, Snapshot, role_of
from rljob_operator.perform.drift import adapted, has_drifted, misfit, stamped
from rljob_operator.plan import SECRET_SECONDS, Event, Plan
from rljob_operator.runtime.logging import severity
from rljob_operator.runtime.store import Store

log = structlog.get_logger()

MAKING = 16
"""Children that are made at a time. An API server that is short of CPUs works on all it is asked at once: with 32
jobs are complete a little sooner, but the Lease was lost once."""


_ANOTHER_MODEL = " or, while spec.suspend is true, for its reward model"

_OTHER_WAYS = {
    VOLUME_CLAIM: ", name it in spec.checkpoint.volume.existingClaim, with a subPath if it holds a run",
    DEPLOYMENT: _ANOTHER_MODEL,
    SERVICE: _ANOTHER_MODEL,
}
"""What helps besides another job where the name of a kind is taken."""


class Refused(Exception):
    """The API server does not take one of the job's objects, or does not let one go; or it fails at it, which may be a
    matter of a moment.

    version: the job's resourceVersion by then, for what is to be said about it.
    """

    def __init__(self, error: KubeError, version: str) -> None:
        super().__init__(error.message)
        self.error, self.version = error, version


class NotTaken(Exception):
    """Ray does not take a driver, or that one is to end; or gives no answer. version: as Refused has it."""

    def __init__(self, error: HeadError, version: str) -> None:
        super().__init__(f"{error}")
        self.error, self.version = error, version


class Performer:
    """What it writes it also tells the store: the next decision must not rest on what was before."""

    def __init__(self, kube: client.Kube, heads: Heads, store: Store) -> None:
        self._kube, self._heads, self._store = kube, heads, store
        self._making = asyncio.Semaphore(MAKING)
        self._secrets: dict[Key, float] = {}  # those that were there a moment ago, and when

    async def find(self, job: Job, ref: Ref) -> list[Manifest]:
        """What has the name and is the job's, whether a watch tells of it or not."""
        try:
            found = (await self._kube.list(ref.kind, ref.namespace, name=ref.name)).items
        except NotFound:  # the kind is gone with all that was of it, as KubeRay's CRD takes every RayCluster along
            return []
        return [each for each in found if is_ours(ref.kind, each, job.ref.key)]

    async def find_pods(self, job: Job) -> list[Manifest]:
        """Those of the RayCluster that have lost our label: KubeRay's own tells whose they are."""
        cluster = f"{names.RAY_CLUSTER_LABEL}={names.ray_cluster(job.name)}"
        pods = [pod for pod in (await self._kube.list(POD, job.namespace, cluster)).items if role_of(pod) is not None]
        return [pod for pod in pods if pod["metadata"]["labels"].get(names.JOB_LABEL) != job.name]

    async def perform(self, snapshot: Snapshot, plan: Plan) -> None:
        """Raises KubeErrors, HeadErrors, Refused and NotTaken; the same plan may be tried again. Where it returns,
        all is done, but for events that were not taken.
        """
        job = snapshot.job
        with _refusals(job.resource_version, Invalid, Forbidden, Unavailable):
            version = await self._finalize(job, present=plan.finalizer)
        with _refusals(version, Forbidden, Unavailable):
            # Those in a hurry come first: a node keeps to the time that it hears first, as of their owner's deletion.
            for refs, grace_period in ((plan.hurry, SOON_SECONDS), (plan.delete, None), (plan.force, 0)):
                for ref in refs:
                    await self._kube.delete(ref, grace_period)
                    self._store.goes(ref, snapshot.now)
        with _refusals(version, Invalid, Forbidden, AlreadyExists, NotFound, Unavailable):
            await self._make(snapshot, plan)
        await self._tell_head(job, plan, version)
        if plan.told is not None:
            await self._post(job, plan.events, await self._report(job, version, plan.told))

    async def _tell_head(self, job: Job, plan: Plan, version: str) -> None:
        """A head takes it from whoever has its tokens, and a stop names no attempt: a late one would meet a newer."""
        if plan.submit is not None:
            self._kube.fence()
            with _taken(version):
                await self._heads.submit(job, plan.submit)
        if plan.stop:
            self._kube.fence()
            await self._heads.stop(job)
        if plan.end is not None:
            self._kube.fence()
            with _taken(version):
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
                raise  # nothing is made for a job that is gone
            return job.resource_version  # the last finalizer of a deleted job was taken away before
        self._told(RLJOB, patched)
        return str(patched["metadata"]["resourceVersion"])

    async def _make(self, snapshot: Snapshot, plan: Plan) -> None:
        """A pod without its volume or its NetworkPolicy must not be: so what has pods comes last."""
        found = [snapshot.child((ref := Ref.of(manifest)).kind, ref.name) for manifest in plan.apply]
        stamps = [stamped(adapted(wanted, there)) for there, wanted in zip(found, plan.apply, strict=True)]
        drifted = [each for there, each in zip(found, stamps, strict=True) if has_drifted(there, each)]
        create = (*plan.create, *self._missing(plan.secret))
        for has_pods in (False, True):
            await _together([
                *(self._apply(snapshot, each) for each in drifted if _has_pods(each) == has_pods),
                *(self._create(snapshot, each) for each in create if _has_pods(each) == has_pods),
            ])  # fmt: skip
        for each in plan.label:
            await self._label(snapshot.job, each)

    def _missing(self, secret: Manifest | None) -> Iterable[Manifest]:
        """The Secret, if it may be gone."""
        if secret is None:
            return []
        now = asyncio.get_running_loop().time()
        self._secrets = {key: seen for key, seen in self._secrets.items() if now - seen < SECRET_SECONDS}
        return [] if Key.of(secret) in self._secrets else [secret]

    async def _apply(self, snapshot: Snapshot, manifest: Manifest) -> None:
        ref = Ref.of(manifest)
        there = snapshot.child(ref.kind, ref.name)
        _check_fits(manifest, there)
        try:
            async with self._making:
                made = await self._kube.apply(manifest, there["metadata"]["uid"] if there else "")
        except AlreadyExists:
            there = await self._known_late(snapshot.job, ref)
            _check_fits(manifest, there)
            made = await self._kube.apply(adapted(manifest, there), there["metadata"]["uid"])
        self._told(ref.kind, made)

    async def _create(self, snapshot: Snapshot, manifest: Manifest) -> None:
        """A Secret that is there is ours: its name has the job's uid and our key, which its content follows from."""
        ref, unknown = Ref.of(manifest), list[str]()
        if ref.kind == RAY_CLUSTER:
            await self._check_head_service(ref)
        try:
            async with self._making:
                made = await self._kube.create(manifest, unknown.append)
        except AlreadyExists:
            if ref.kind != SECRET:
                await self._label(snapshot.job, await self._known_late(snapshot.job, ref))
        else:
            if ref.kind != SECRET:
                self._told(ref.kind, made)
            if unknown:  # of the version of what was made: the job's has events of its own
                told = [ignored(snapshot.job, manifest, unknown)]
                await self._post(snapshot.job, told, made["metadata"]["resourceVersion"])
        if ref.kind == SECRET:
            self._secrets[ref.key] = asyncio.get_running_loop().time()

    async def _check_head_service(self, cluster: Ref) -> None:
        """KubeRay could not make it for the RayCluster, which would say nothing of that."""
        name = head_service(cluster.name)
        for found in (await self._kube.list(SERVICE, cluster.namespace, name=name)).items:
            owners = found["metadata"].get("ownerReferences", ())
            if (RAY_CLUSTER.name, cluster.name) not in ((each["kind"], each["name"]) for each in owners):
                raise AlreadyExists(
                    f"Service {name} exists and is not this job's: choose another name for the job, or remove"
                    " it; KubeRay makes one of that name for the head pod",
                    status=HTTPStatus.CONFLICT, reason="AlreadyExists",
                )  # fmt: skip

    async def _label(self, job: Job, found: Manifest) -> None:
        """Without our label no watch tells of it."""
        ref, metadata = Ref.of(found), found["metadata"]
        if metadata.get("labels", {}).get(names.JOB_LABEL) != job.name:
            labels = {"labels": dict(names.labels(job.name))}
            found = await self._kube.patch_metadata(ref, metadata["resourceVersion"], labels)
            log.warning("label_put_back", job=f"{job.namespace}/{job.name}", object=str(ref))
        self._told(ref.kind, found)
        self._check_held(job, ref)

    def _check_held(self, job: Job, ref: Ref) -> None:
        """The next look, which is at once, would ask for what the store does not hold again, and without end."""
        if ref.key not in map(Key.of, self._store.children(ref.kind, Key(job.namespace, job.name))):
            raise AlreadyExists(
                f"{ref.kind.name} {ref.name} exists, and no list shows it: who takes its label {names.JOB_LABEL} away?"
                " Leave that there, or remove the object",
                status=HTTPStatus.CONFLICT, reason="AlreadyExists",
            )  # fmt: skip

    async def _known_late(self, job: Job, ref: Ref) -> Manifest:
        """What has the name and is the job's: our write's answer was lost, or no watch tells of it, perhaps for it has
        lost our label.

        Raises AlreadyExists where it is somebody else's.
        """
        for found in await self.find(job, ref):
            return found
        raise AlreadyExists(
            f"{ref.kind.name} {ref.name} exists and is not this job's: choose another name for the job"
            f"{_OTHER_WAYS.get(ref.kind, '')}, or remove it",
            status=HTTPStatus.CONFLICT, reason="AlreadyExists",
        )  # fmt: skip

    async def _report(self, job: Job, version: str, status: RLJobStatus) -> str:
        """The job's resourceVersion afterwards."""
        patch = _difference(_written(job.status), _written(status))
        patched = await self._kube.patch_status(job.ref, version, patch)
        self._told(RLJOB, patched)
        return str(patched["metadata"]["resourceVersion"])

    async def _post(self, job: Job, told: Iterable[Event], version: str) -> None:
        """What they tell of is done, so who takes none of them holds nothing up."""
        at = datetime.now(UTC)
        try:
            for place, event in enumerate(told):
                await self._kube.post_event(_posted(job, event, at, version, place))
        except KubeError as error:
            log.log(severity(error), "events_not_posted", job=f"{job.namespace}/{job.name}", error=str(error))

    def _told(self, kind: Any, manifest: Manifest) -> None:
        if "deletionTimestamp" not in manifest["metadata"] or manifest["metadata"].get("finalizers"):
            self._store.put(kind, manifest)


@contextmanager
def _refusals(version: str, *kinds: type[KubeError]) -> Iterator[None]:
    """kinds: the errors that are of the object alone, so the job's status can be told of them."""
    try:
        yield
    except kinds as error:
        raise Refused(error, version) from error


@contextmanager
def _taken(version: str) -> Iterator[None]:
    try:
        yield
    except HeadError as error:
        raise NotTaken(error, version) from error


def _has_pods(manifest: Manifest) -> bool:
    return manifest["kind"] in (RAY_CLUSTER.name, DEPLOYMENT.name)


def _check_fits(manifest: Manifest, there: Manifest | None) -> None:
    """The API server would call it invalid, which ends a new job, and tell neither the job's field nor a way out."""
    if (why := misfit(manifest, there)) is not None:
        name = manifest["metadata"]["name"]
        raise AlreadyExists(
            f"{manifest['kind']} {name} {why}: delete the claim, if nobody needs what is in it; or make the RLJob anew,"
            " with what the claim has, or with it as spec.checkpoint.volume.existingClaim; with a subPath if it holds"
            " a run",
            status=HTTPStatus.CONFLICT, reason="AlreadyExists",
        )  # fmt: skip


async def _together(writes: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Raises the first error, and not before the last write has ended: none may meet those of the next look."""
    for ended in await asyncio.gather(*writes, return_exceptions=True):
        if ended is not None:
            raise ended


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


def _posted(job: Job, event: Event, at: datetime, version: str, place: int) -> events.Event:
    """at: of the first of a plan's events; the others come after it, whatever the clock does."""
    when = at + timedelta(microseconds=place)
    return events.Event(job.ref, event.reason, event.message, "Reconcile", when, version, place, event.warning)
