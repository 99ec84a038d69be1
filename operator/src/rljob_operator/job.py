"""An RLJob as the API server holds it, read once."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from rljob_api import RLJobSpec
from rljob_api.v1alpha1 import Condition, RLJobStatus
from rljob_operator import names
from rljob_operator.kube.kinds import RLJOB, Manifest, Ref


@dataclass(frozen=True, slots=True)
class Job:
    """One RLJob.

    problem: why the operator cannot read the job; None if it can. unread: a field of the spec that only a newer API
    has; None if it knows all. deleted: when its deletion was requested. manager: spec.managedBy, also of a spec that
    cannot be read. queue, priority_class: LocalQueue and WorkloadPriorityClass that its labels name. prebuilt: Workload
    that MultiKueue created for this copy of a job. status: the part that can be read.
    whole: the spec as its author wrote it; `read` has fewer pods if the queue admitted fewer. None for the same.
    """

    name: str
    namespace: str
    uid: str
    generation: int
    resource_version: str
    deleted: datetime | None
    finalizers: tuple[str, ...]
    read: RLJobSpec | None
    problem: str | None
    unread: str | None
    manager: str | None
    queue: str | None
    priority_class: str | None
    prebuilt: str | None
    status: RLJobStatus
    whole: RLJobSpec | None = None

    @property
    def spec(self) -> RLJobSpec:
        """Raises ValueError if there is a problem."""
        if self.read is None:
            raise ValueError(self.problem)
        return self.read

    @property
    def written(self) -> RLJobSpec:
        """The spec as its author wrote it. Raises ValueError if there is a problem."""
        return self.spec if self.whole is None else self.whole

    @property
    def workload(self) -> str:
        """Name of its Workload."""
        return self.prebuilt or names.workload(self.name, self.uid)

    @property
    def ref(self) -> Ref:
        return Ref(RLJOB, self.namespace, self.name, self.uid)

    @property
    def owner_reference(self) -> Manifest:
        return {
            "apiVersion": RLJOB.api_version,
            "kind": RLJOB.name,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }

    @property
    def has_begun(self) -> bool:
        """Whether an attempt has begun since the job was created or resumed. A RayCluster does not prove it: it may be
        created beside an object that is refused.
        """
        driver = self.status.driver
        return self.status.start_time is not None or (driver is not None and driver.state != "Ended")

    def condition(self, kind: str) -> Condition | None:
        return next((each for each in self.status.conditions if each.type == kind), None)


def read_job(manifest: Mapping[str, Any]) -> Job:
    """Never raises for what a user or another version can write: `problem` says what cannot be read."""
    metadata = manifest["metadata"]
    labels, annotations = (metadata.get(each, {}) for each in ("labels", "annotations"))
    read, problem, unread = _spec(manifest.get("spec", {}))
    status, unclear = _status(manifest.get("status") or {})
    return Job(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=metadata["generation"],
        resource_version=metadata["resourceVersion"],
        deleted=_time(metadata.get("deletionTimestamp")),
        finalizers=tuple(metadata.get("finalizers", ())),
        read=read,
        problem=problem or unclear,
        unread=unread,
        manager=manifest.get("spec", {}).get("managedBy"),
        queue=labels.get(names.QUEUE_LABEL) or None,
        priority_class=labels.get(names.PRIORITY_LABEL) or None,
        prebuilt=next(filter(None, (each.get(names.PREBUILT_WORKLOAD) for each in (labels, annotations))), None),
        status=status,
    )


def _spec(written: Mapping[str, Any]) -> tuple[RLJobSpec | None, str | None, str | None]:
    """The spec, its problem, a field that is not known. A newer CRD gives every job its new defaults at once, while the
    operator is still the older one: those must not stop jobs that run.
    """
    try:
        return RLJobSpec.model_validate(written), None, None
    except ValidationError as error:
        found = _words("spec", error)
        if any(each["type"] != "extra_forbidden" for each in error.errors()):
            return None, found, None
    return RLJobSpec.model_validate(written, extra="ignore"), None, found


def _status(written: Mapping[str, Any]) -> tuple[RLJobStatus, str | None]:
    """The part that can be read, and what cannot: a newer operator may have written more."""
    try:
        return RLJobStatus.model_validate(written, extra="ignore"), None
    except ValidationError as error:
        wrong = {each["loc"][0] for each in error.errors()}
        readable = {name: value for name, value in written.items() if name not in wrong}
        return RLJobStatus.model_validate(readable, extra="ignore"), _words("status", error)


def _words(part: str, error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(map(str, (part, *first["loc"])))
    return f"{where}: {first['msg']} (this operator has another version of the API, or the job is older than its rules)"


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
