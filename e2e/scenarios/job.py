"""An RLJob in a cluster, as its user sees it: by kubectl."""

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from e2e.cluster.access import Access
from e2e.cluster.errors import ClusterError
from e2e.scenarios.rewards import check_end
from rljob_api.conditions import Reason
from rljob_operator.names import claim
from rljob_operator.render.merge import merged
from rljob_trainer.checkpoint.lineage import Claim

T = TypeVar("T")

EXAMPLE = Path(__file__).parents[2] / "examples/reverse-text.yaml"

SFT_STEPS = 10

VALIDATE_EVERY = 6

VALIDATED = SFT_STEPS + VALIDATE_EVERY
"""A step by which a validation has written samples."""

SMALL: dict[str, Any] = {
    "data": {"promptsPerStep": 16},
    "actor": {"miniBatchSize": 8},
    "sft": {"steps": SFT_STEPS},
    "rewards": {"functions": [{"name": "letters", "builtin": "similarity", "arguments": {"method": "positions"}}]},
    "training": {"steps": 12, "validateEvery": VALIDATE_EVERY},
    "checkpoint": {"everySteps": 2},
    "ttlAfterFinished": "30s",
}
"""Few and short steps, so that a job ends soon, with a reward that is not 0 after so few supervised steps.

ttlAfterFinished keeps the pods for reading the end of the run from the volume.
"""

ACCESS_MODE = "E2E_ACCESS_MODE"
"""Of volumes, where a cluster has none that are ReadWriteMany, which is what jobs ask for by default."""

LONG = {"training": {"steps": 60}}
"""Time enough to lose something and to see what follows."""

LONGER = {"training": {"steps": 400}}
"""Time enough, on a fast machine too, for what is missed late: half a minute passes until another operator has the
Lease of one that is killed, and most of one until a node that does not report is found.
"""

SUCCESS_CONDITIONS = {
    "Ready": "True",
    "CheckpointAvailable": "True",
    "Succeeded": "True",
    "Failed": "False",
    "Running": "False",
    "Reconciling": "False",
    "Stalled": "False",
}
"""Of a job that has succeeded."""

RECOVERY_CONDITIONS = {
    "Ready": "False",
    "CheckpointAvailable": "True",
    "Running": "False",
    "Failed": "False",
    "Reconciling": "True",
    "Stalled": "False",
}

FAILURE_CONDITIONS = {
    "Ready": "False",
    "CheckpointAvailable": "True",
    "Succeeded": "False",
    "Failed": "True",
    "Running": "False",
    "Reconciling": "False",
    "Stalled": "True",
}
"""Of a job that has failed after a durable checkpoint."""

LOST_WORKER = ("RankLost", "EngineLost", "RewardsLost", "Infrastructure")
"""One of these words tells that a worker pod is gone: it had a rank, an engine and the scorer; one is missed first."""

MINUTES = 60.0


@dataclass(frozen=True)
class Job:
    """labels: of the RLJob, such as its queue."""

    access: Access
    namespace: str
    name: str = "reverse-text"
    labels: Mapping[str, str] = field(default_factory=dict)

    def apply(self, **spec: Any) -> None:
        """The example, made small. spec: on top of that."""
        manifest = yaml.safe_load(EXAMPLE.read_text())
        manifest["metadata"] = {"name": self.name, "labels": dict(self.labels)}
        volume = {"accessMode": os.environ.get(ACCESS_MODE)}
        small = merged(merged(manifest["spec"], SMALL), {"checkpoint": {"volume": volume}})
        manifest["spec"] = merged(small, spec)
        self.kubectl("apply", "--filename=-", objects=yaml.safe_dump(manifest))

    def patch(self, **spec: Any) -> None:
        self.kubectl("patch", "rljob", self.name, "--type=merge", f"--patch={json.dumps({'spec': spec})}")

    def kubectl(self, *arguments: str, objects: str = "") -> str:
        return self.access.kubectl(f"--namespace={self.namespace}", *arguments, objects=objects)

    def rljob(self, command: str) -> str:
        """What that command of `kubectl rljob` prints."""
        return self.access.rljob(command, self.name, f"--namespace={self.namespace}")

    @property
    def spec(self) -> dict[str, Any]:
        return self._part("spec")

    @property
    def status(self) -> dict[str, Any]:
        return self._part("status")

    def _part(self, name: str) -> dict[str, Any]:
        part: dict[str, Any] = json.loads(self.kubectl("get", "rljob", self.name, "--output=json")).get(name, {})
        return part

    @property
    def phase(self) -> str:
        return str(self.status.get("phase"))

    @property
    def step(self) -> int:
        return int(self.status.get("progress", {}).get("step", 0))

    @property
    def saved(self) -> int:
        """Step of the newest durable checkpoint that the status knows; there is one."""
        return int(self.status["checkpoint"]["step"])

    @property
    def conditions(self) -> dict[str, dict[str, str]]:
        return {each["type"]: each for each in self.status.get("conditions", ())}

    def holds(self, condition: str) -> bool:
        return self.conditions.get(condition, {}).get("status") == "True"

    def events(self) -> list[str]:
        """Reasons of the job's own, oldest first."""
        of_job = f"--field-selector=involvedObject.kind=RLJob,involvedObject.name={self.name}"
        found = json.loads(self.kubectl("get", "events", of_job, "--output=json"))["items"]
        return [each["reason"] for each in sorted(found, key=lambda each: each["eventTime"] or "")]

    def folder(self) -> Path | None:
        """Of its volume on this machine. None if the claim is not bound, or the cluster does not answer."""
        try:
            found = json.loads(self.kubectl("get", "pvc", claim(self.name), "--output=json"))
            volume = json.loads(self.kubectl("get", "pv", found["spec"]["volumeName"], "--output=json"))
        except (ClusterError, KeyError):
            return None
        source = volume["spec"].get("hostPath") or volume["spec"]["local"]
        return Path(source["path"])

    def trains(self, beyond: int = 0) -> None:
        """Waits for an RL step of a job that has a durable checkpoint, later than that one."""
        after = max(beyond, SFT_STEPS + 1)
        self.eventually(lambda: self.step > after and self.status.get("checkpoint"), f"step after {after}")

    def lines(self) -> list[tuple[int, dict[str, Any]]]:
        """Attempt and metrics of each step that the volume tells of, while a head runs."""
        lines = 'for each in /checkpoints/metrics/a*[0-9].jsonl; do sed "s|^|$each |" $each; done'
        told = self.run_in("head", "sh", "-c", lines, container="agent").splitlines()
        split = [(re.search(r"a(\d+)[.]jsonl", each), each.partition(" ")[2]) for each in told]
        return [(int(name[1]), json.loads(line)) for name, line in split if name and '"time/step"' in line]

    def seconds_to_next_update(self, since: float, attempt: int) -> float:
        """From a loss to the end of the first optimizer step of that attempt. since: Unix time.

        A line of a step that ranks had done before it, whose driver did not write it down, is none of those.
        """

        def there() -> float | None:
            claim = self._decided(attempt) if self.runs(attempt) else None
            if claim is None:
                return None
            after = claim.resumed_step or 0
            ends = [line["time"] for number, line in self.lines() if number == attempt and line["step"] > after]
            return float(min(ends)) - since if ends else None

        return self.eventually(there, f"step of attempt {attempt}")

    def recovers(self) -> None:
        """Waits until the conditions say that it is on the way from a loss to its next attempt."""

        def said() -> bool:
            status = self.status
            found = {each["type"]: each["status"] for each in status.get("conditions", ())}
            return status.get("phase") == "Recovering" and RECOVERY_CONDITIONS.items() <= found.items()

        self.eventually(said, "Recovering in its conditions")

    def runs(self, attempt: int) -> bool:
        status = self.status
        return (status.get("attempt"), status.get("phase")) == (attempt, "Running")

    def takes_over(self, attempt: int, after: int) -> None:
        """The attempt, which runs, goes on with the living ranks of the one before it, after that step or a later one.

        Raises AssertionError where it does not.
        """
        self._continues(attempt, after)
        if '"ranks_taken_over"' not in (log := self._read(f"logs/a{attempt}.jsonl")):
            raise AssertionError(f"attempt {attempt} took no ranks over:\n{log}")

    def resumes(self, attempt: int, after: int) -> None:
        """The attempt, which runs, goes on from the other one's checkpoint of that step, or of a later one.

        Raises AssertionError where it does not.
        """
        claim = self._continues(attempt, after)
        if claim.checkpoint_step != claim.resumed_step:
            raise AssertionError(f"it does not begin where its checkpoint ends: {claim}")

    def last_step(self, attempt: int) -> int:
        """That the volume tells of, while a head runs."""
        return max(int(line["step"]) for number, line in self.lines() if number == attempt)

    def claim(self, attempt: int) -> Claim:
        """What that attempt goes on with, while a head runs."""
        found = json.loads(self._read(f"attempts/{attempt}.json"))
        return Claim(
            attempt, parent=found["parent"], resumed_from=found["resumedFrom"], resumed_step=found["resumedStep"]
        )

    def _continues(self, attempt: int, after: int) -> Claim:
        claim = self.eventually(lambda: self._decided(attempt), f"claim of attempt {attempt}")
        if claim.parent != attempt - 1 or (claim.resumed_step or 0) < after:
            raise AssertionError(f"it does not go on with attempt {attempt - 1} after step {after}: {claim}")
        return claim

    def _decided(self, attempt: int) -> Claim | None:
        """Its claim, once it says where it goes on."""
        try:
            claim = self.claim(attempt)
        except ClusterError:  # the driver runs, and has claimed nothing yet
            return None
        return claim if claim.resumed_step is not None else None

    def _read(self, file: str) -> str:
        """Of the volume, while a head runs."""
        return self.run_in("head", "cat", f"/checkpoints/{file}", container="agent")

    def pods(self, role: str = "") -> list[str]:
        selector = f"--selector=rljob.dev/job={self.name}" + (f",rljob.dev/role={role}" if role else "")
        return self.kubectl("get", "pods", selector, "--output=name").split()

    def run_in(self, role: str, *command: str, container: str = "") -> str:
        """In a container, by default the first, of the pod of that role."""
        (pod,) = self.pods(role)
        return self.kubectl("exec", pod, *([f"--container={container}"] if container else []), "--", *command)

    def nodes(self) -> dict[str, str]:
        """Of its pods: the node's name, by role."""
        found = json.loads(self.kubectl("get", "pods", f"--selector=rljob.dev/job={self.name}", "--output=json"))
        return {each["metadata"]["labels"]["rljob.dev/role"]: each["spec"]["nodeName"] for each in found["items"]}

    def reaches(self, phase: str, within: float = 8 * MINUTES) -> dict[str, Any]:
        """The status, once it has that phase. within: seconds."""

        def there() -> dict[str, Any] | None:
            status = self.status
            if status.get("phase") == "Failed" != phase:
                raise AssertionError(f"the job has failed: {status}")
            return status if status.get("phase") == phase else None

        return self.eventually(there, f"phase {phase}", within)

    def succeeds(self) -> dict[str, Any]:
        """The status of the end, with all steps, the reward that the volume tells of, the last step's checkpoint, and
        the conditions and the event that say so.

        Raises AssertionError where something is missing.
        """
        status = self.reaches("Succeeded")
        progress, attempt = status["progress"], status["attempt"]
        if progress["step"] != progress["totalSteps"] or not progress.get("reward"):
            raise AssertionError(f"steps or the reward are missing: {progress}")
        check_end(status, self.claim(attempt), [line for number, line in self.lines() if number == attempt])
        if (status.get("checkpoint") or {}).get("step") != progress["step"]:
            raise AssertionError(f"the last step's checkpoint is missing: {status.get('checkpoint')}")
        self._says(SUCCESS_CONDITIONS, Reason.COMPLETED)
        return status

    def fails(self, reason: str, *, saved: bool = True) -> dict[str, str]:
        """The condition Failed, with that reason, and the other conditions and the event that say so.

        saved: whether there is a durable checkpoint. Raises AssertionError where something is missing.
        """
        self.reaches("Failed")
        failed = self.conditions["Failed"]
        if failed["reason"] != reason:
            raise AssertionError(f"it failed otherwise: {failed}")
        self._says({**FAILURE_CONDITIONS, "CheckpointAvailable": str(saved)}, reason)
        return failed

    def _says(self, conditions: dict[str, str], event: str) -> None:
        said = {kind: each["status"] for kind, each in self.conditions.items()}
        if not conditions.items() <= said.items():
            raise AssertionError(f"of {conditions} some are missing: {said}")
        self.eventually(lambda: event in self.events(), f"event {event}", MINUTES)

    def succeeds_after(self, *reasons: str) -> dict[str, Any]:
        """As `succeeds`, and an event has reported a loss with one of the reasons."""
        status = self.succeeds()
        if set(reasons).isdisjoint(events := self.events()):
            raise AssertionError(f"no event tells of {' or '.join(reasons)}: {events}")
        return status

    def eventually(self, look: Callable[[], T | None], what: str, within: float = 8 * MINUTES) -> T:
        """What `look` gives when it is true for the first time."""
        deadline = time.monotonic() + within
        while not (found := look()):
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} within {within:.0f} s; {self._state()}")
            time.sleep(0.5)
        return found

    def _state(self) -> str:
        pods = self.kubectl("get", "pods,events", "--output=wide")
        return f"the job: {json.dumps(self.status, indent=1)}\n{pods}"
