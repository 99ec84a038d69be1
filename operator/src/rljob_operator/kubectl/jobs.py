"""One RLJob and its pods, read for people: from JSON, so that an older plugin shows what a newer operator wrote."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from rljob_operator import names
from rljob_operator.kubectl.calls import RLJOBS, Kubectl, Manifest, Problem

_KIND = re.compile(r"^(?:rljobs?|rlj)(?:\.rljob\.dev)?/")
_NAME = re.compile(r"[a-z0-9](?:[-.a-z0-9]*[a-z0-9])?")
_UNITS = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


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
    def spec(self) -> Manifest:
        return self.manifest.get("spec") or {}

    @property
    def status(self) -> Manifest:
        return self.manifest.get("status") or {}

    @property
    def other_manager(self) -> str | None:
        """The controller that manages it, if not rljob-operator."""
        manager = self.spec.get("managedBy")
        return None if manager in (*names.OUR_MANAGERS, names.MULTIKUEUE) else str(manager)

    @property
    def unseen(self) -> str:
        """What to say of a job without a phase."""
        return f"left to {self.other_manager}" if self.other_manager else "not seen by an operator"

    def part(self, name: str) -> Manifest:
        """An object of the status; empty if there is none."""
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
    def is_seen(self) -> bool:
        """Whether the status speaks of the present spec."""
        return int(self.status.get("observedGeneration", 0)) >= int(self.manifest["metadata"]["generation"])

    @property
    def claim(self) -> str:
        """The claim of its volume."""
        volume = self.spec.get("checkpoint", {}).get("volume") or {}
        return str(volume.get("existingClaim") or names.claim(self.name))

    def ago(self, when: str | None) -> str:
        """Empty if there is no such time."""
        return span((self.now - datetime.fromisoformat(when)).total_seconds()) if when else ""

    def until(self, when: str | None) -> str:
        return span((datetime.fromisoformat(when) - self.now).total_seconds()) if when else ""


def read(manifest: Manifest) -> Job:
    return Job(manifest, datetime.now(UTC))


def job_named(kubectl: Kubectl, name: str) -> Job:
    """name: as people type it, or as kubectl prints it: rljob.rljob.dev/NAME."""
    name = _KIND.sub("", name)
    if not _NAME.fullmatch(name):
        raise Problem(f"{name!r} is not a name of an RLJob: use lowercase letters, digits and '-'")
    return read(kubectl.get(RLJOBS, name))


def head_pod(kubectl: Kubectl, job: Job) -> str | None:
    """Its name; None if there is none."""
    selector = f"--selector={names.JOB_LABEL}={job.name},{names.ROLE_LABEL}={names.HEAD}"
    return next((str(pod["metadata"]["name"]) for pod in kubectl.get("pods", selector)["items"]), None)


def span(seconds: float) -> str:
    """Its two largest units: 1h5m, 12s. Clocks differ, so a time may lie ahead: 0s."""
    left, parts = max(int(seconds), 0), list[str]()
    for unit, size in _UNITS:
        if left >= size or (unit == "s" and not parts):
            parts.append(f"{left // size}{unit}")
            left %= size
    return "".join(parts[:2])
