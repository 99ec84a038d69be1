"""An RLJob as the API server holds it, read once."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from rljob_api import RLJobSpec
from rljob_api.v1alpha1 import Condition, RLJobStatus
from rljob_operator.kube.kinds import RLJOB, Manifest, Ref


@dataclass(frozen=True, slots=True)
class Job:
    """One RLJob.

    problem: why the operator cannot read the spec; None where it can. deleted: when somebody asked to delete it.
    manager: spec.managedBy, also of a spec that cannot be read.
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
    manager: str | None
    status: RLJobStatus

    @property
    def spec(self) -> RLJobSpec:
        """Raises ValueError where there is a problem."""
        if self.read is None:
            raise ValueError(self.problem)
        return self.read

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

    def condition(self, kind: str) -> Condition | None:
        return next((each for each in self.status.conditions if each.type == kind), None)

    def holds(self, kind: str) -> bool:
        condition = self.condition(kind)
        return condition is not None and condition.status == "True"


def read_job(manifest: Mapping[str, Any]) -> Job:
    """Never raises for what a user can write: a spec that this version cannot read is a problem of the job."""
    metadata = manifest["metadata"]
    read, problem = _spec(manifest.get("spec", {}))
    return Job(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=metadata["generation"],
        resource_version=metadata["resourceVersion"],
        deleted=_time(metadata.get("deletionTimestamp")),
        finalizers=tuple(metadata.get("finalizers", ())),
        read=read,
        problem=problem,
        manager=manifest.get("spec", {}).get("managedBy"),
        status=RLJobStatus.model_validate(manifest.get("status") or {}),
    )


def _spec(written: Mapping[str, Any]) -> tuple[RLJobSpec | None, str | None]:
    try:
        return RLJobSpec.model_validate(written), None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in ("spec", *first["loc"]))
        return None, f"{where}: {first['msg']} (this operator's version reads another API than the installed CRD)"


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
