"""One RLJob, read for people: from JSON, so that an older plugin shows what a newer operator wrote."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches

from rljob_operator.kubectl.calls import RLJOBS, Kubectl, Manifest, NotFound, Problem
from rljob_operator.kubectl.show import span
from rljob_operator.names import OUR_MANAGERS

FINISHED = ("Succeeded", "Failed")

_KIND = re.compile(r"^(?:rljobs?|rlj)(?:\.rljob\.dev)?/")
_NAME = re.compile(r"[a-z0-9](?:[-.a-z0-9]*[a-z0-9])?")

_TOLD = ("Running", "Suspended", *FINISHED)
"""Phases that are conditions too. Of any other only Reconciling tells, which stays true from one to the next."""


@dataclass(frozen=True, slots=True)
class Job:
    """An RLJob at `now`."""

    manifest: Manifest
    now: datetime

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.manifest["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        return str(self.manifest["metadata"]["uid"])

    @property
    def spec(self) -> Manifest:
        return self.manifest.get("spec") or {}

    @property
    def status(self) -> Manifest:
        return self.manifest.get("status") or {}

    @property
    def other_manager(self) -> str | None:
        """Who looks after it, if not rljob-operator."""
        manager = self.spec.get("managedBy")
        return None if manager in OUR_MANAGERS else str(manager)

    @property
    def unseen(self) -> str:
        """What a job without a phase is."""
        return f"left to {self.other_manager}" if self.other_manager else "not seen by an operator"

    def part(self, name: str) -> Manifest:
        """An object of the status; empty where there is none."""
        return self.status.get(name) or {}

    @property
    def phase(self) -> str:
        """Empty until an operator has seen it."""
        return str(self.status.get("phase", ""))

    def condition(self, kind: str) -> Manifest:
        return next((each for each in self.status.get("conditions", ()) if each["type"] == kind), {})

    @property
    def reason(self) -> str:
        return str(self.condition("Ready").get("reason", ""))

    @property
    def message(self) -> str:
        return str(self.condition("Ready").get("message", ""))

    @property
    def phase_began(self) -> str | None:
        """None where no condition tells of the phase alone."""
        return self.condition(self.phase).get("lastTransitionTime") if self.phase in _TOLD else None

    @property
    def reconciling_since(self) -> str | None:
        """None where the operator has nothing to do."""
        found = self.condition("Reconciling")
        return found.get("lastTransitionTime") if found.get("status") == "True" else None

    @property
    def is_seen(self) -> bool:
        """Whether the status speaks of the spec as it is now."""
        return int(self.status.get("observedGeneration", 0)) >= int(self.manifest["metadata"]["generation"])

    @property
    def step(self) -> str:
        progress = self.part("progress")
        return f"{progress.get('step', 0)}/{progress['totalSteps']}" if progress.get("totalSteps") else ""

    @property
    def eta(self) -> str:
        eta = self.part("progress").get("eta")
        return self.until(eta) if eta and self.phase == "Running" else ""

    def ago(self, when: str | None) -> str:
        """Empty where there is no such time."""
        return span((self.now - moment(when)).total_seconds()) if when else ""

    def until(self, when: str | None) -> str:
        return span((moment(when) - self.now).total_seconds()) if when else ""


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def read(manifest: Manifest) -> Job:
    return Job(manifest, datetime.now(UTC))


def job_named(kubectl: Kubectl, name: str) -> Job:
    """name: as people type it, or as kubectl prints it: rljob.rljob.dev/NAME."""
    name = _KIND.sub("", name)
    if not _NAME.fullmatch(name):
        raise Problem(f"{name!r} is no name of an RLJob: lowercase letters, digits and '-'; see kubectl rljob list")
    try:
        return read(kubectl.get(RLJOBS, name))
    except NotFound:
        others = (item["metadata"]["name"] for item in kubectl.get(RLJOBS)["items"])
        raise Problem(_no_such(name, kubectl.current_namespace(), others)) from None


def newest(kubectl: Kubectl, job: Job) -> Job:
    """The same job as it is now. Raises Deleted."""
    try:
        now = read(kubectl.get(RLJOBS, job.name))
    except NotFound:
        raise Deleted(job) from None
    if now.uid != job.uid:
        raise Deleted(job)
    return now


class Deleted(Problem):
    """Another job may have its name by now."""

    def __init__(self, job: Job) -> None:
        super().__init__(f"{job.name} was deleted meanwhile")


def _no_such(name: str, namespace: str, others: Iterable[str]) -> str:
    close = get_close_matches(name, list(others), n=1)
    missing = f"there is no RLJob {name} in namespace {namespace}"
    return f"{missing}; did you mean {close[0]}?" if close else f"{missing}; see kubectl rljob list --all-namespaces"
