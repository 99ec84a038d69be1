"""Creates and applies what a plan asks for: what pods need first, what has pods last."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from rljob_operator.job import Job
from rljob_operator.kube.client import Kube
from rljob_operator.kube.errors import AlreadyExists, Invalid, NotFound, one_line
from rljob_operator.kube.kinds import DEPLOYMENT, RAY_CLUSTER, SECRET, VOLUME_CLAIM, Key, Kind, Manifest, Ref
from rljob_operator.observe.gather import is_ours
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.perform.drift import adapted, has_drifted, stamped
from rljob_operator.plan import SECRET_SECONDS, Plan

Seen = Callable[[Kind, Manifest], None]
Ignored = Callable[[Manifest, list[str], Manifest], Awaitable[None]]
"""What was sent, the API server's warnings about fields that it does not know, and what was created."""

MAKING = 16
"""Children that are created at a time. An API server that lacks CPUs works on all requests at once: with 32 jobs are
complete a little sooner, but the Lease was lost once."""

_CLAIM_REMEDY = ", set spec.checkpoint.volume.existingClaim to it, with a subPath if it holds a run"


class Children:
    """seen: called with each object that was written, or found to be there already."""

    def __init__(self, kube: Kube, seen: Seen) -> None:
        self._kube, self._seen = kube, seen
        self._making = asyncio.Semaphore(MAKING)
        self._secrets: dict[Key, float] = {}  # those that were there a moment ago, and when

    async def make(self, snapshot: Snapshot, plan: Plan, ignored: Ignored) -> None:
        """A pod must not start without its volume or its NetworkPolicy, so what has pods comes last."""
        found = [snapshot.child((ref := Ref.of(manifest)).kind, ref.name) for manifest in plan.apply]
        stamps = [stamped(adapted(wanted, there)) for there, wanted in zip(found, plan.apply, strict=True)]
        drifted = [each for there, each in zip(found, stamps, strict=True) if has_drifted(there, each)]
        create = (*plan.create, *self._missing(plan.secret))
        for has_pods in (False, True):
            await _together([
                *(self._apply(snapshot, each) for each in drifted if _has_pods(each) == has_pods),
                *(self._create(snapshot.job, each, ignored) for each in create if _has_pods(each) == has_pods),
            ])  # fmt: skip

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
        try:
            made = await self._applied(manifest, there)
        except AlreadyExists:
            if there is not None:
                raise
            there = await self._known_late(snapshot.job, ref)
            made = await self._applied(adapted(manifest, there), there)
        self._seen(ref.kind, made)

    async def _applied(self, manifest: Manifest, there: Manifest | None) -> Manifest:
        """An earlier job's claim may have fields that never change. That is no fault of this job, which waits."""
        try:
            async with self._making:
                return await self._kube.apply(manifest, there["metadata"]["uid"] if there else "")
        except Invalid as error:
            if there is None or manifest["kind"] != VOLUME_CLAIM.name:
                raise
            raise _taken(
                f"PersistentVolumeClaim {manifest['metadata']['name']} of an earlier job differs from"
                f" spec.checkpoint.volume: {one_line(error.message)}. Delete the claim if its content is not needed; or"
                " create the RLJob again with what the claim has, or with it as spec.checkpoint.volume.existingClaim"
            ) from error

    async def _create(self, job: Job, manifest: Manifest, ignored: Ignored) -> None:
        """A Secret that exists is the job's: its name has the job's uid and the key that its content follows from."""
        ref, unknown = Ref.of(manifest), list[str]()
        try:
            async with self._making:
                made = await self._kube.create(manifest, unknown.append)
        except AlreadyExists:
            if ref.kind != SECRET:
                self._seen(ref.kind, await self._known_late(job, ref))
        else:
            if ref.kind != SECRET:
                self._seen(ref.kind, made)
            if unknown:
                await ignored(manifest, unknown, made)
        if ref.kind == SECRET:
            self._secrets[ref.key] = asyncio.get_running_loop().time()

    async def _known_late(self, job: Job, ref: Ref) -> Manifest:
        """The job's object of that name: the answer to the operator's own write was lost. Raises AlreadyExists if the
        object belongs to another owner, or has lost the label that the operator watches.
        """
        try:
            found = (await self._kube.list(ref.kind, ref.namespace, name=ref.name)).items
        except NotFound:  # the kind is gone with all its objects, for example with KubeRay's CRD
            found = []
        for each in found:
            if is_ours(ref.kind, each, job.ref.key):
                return each
        raise _taken(
            f"{ref.kind.name} {ref.name} exists and does not belong to this job. Choose another name for the job"
            f"{_CLAIM_REMEDY if ref.kind == VOLUME_CLAIM else ''}, or delete the {ref.kind.name}"
        )


def _taken(message: str) -> AlreadyExists:
    return AlreadyExists(message, reason="AlreadyExists")


def _has_pods(manifest: Manifest) -> bool:
    return manifest["kind"] in (RAY_CLUSTER.name, DEPLOYMENT.name)


async def _together(writes: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Raises the first error after the last write has ended: no write may overlap with those of the next look."""
    for ended in await asyncio.gather(*writes, return_exceptions=True):
        if ended is not None:
            raise ended
