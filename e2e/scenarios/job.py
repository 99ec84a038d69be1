"""An RLJob in a cluster, as its user sees it: by kubectl."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from e2e.cluster.access import Access
from rljob_operator.render.merge import merged

T = TypeVar("T")

EXAMPLE = Path(__file__).parents[2] / "examples/reverse-text.yaml"

SMALL = {
    "sft": {"steps": 10},
    "training": {"steps": 12, "validateEvery": 6},
    "checkpoint": {"everySteps": 2, "volume": {"size": "1Gi"}},
    "cluster": {
        "nodes": 1,
        "head": {"cpu": "100m", "memory": "3Gi"},
        "worker": {"cpu": "200m", "memory": "6Gi", "sharedMemory": "1Gi"},
    },
}
"""What the example needs to fit two cores, and to be over soon."""

MINUTES = 60.0


@dataclass(frozen=True)
class Job:
    access: Access
    namespace: str
    name: str = "reverse-text"

    def apply(self, **spec: Any) -> None:
        """The example, made small. spec: on top of that."""
        manifest = yaml.safe_load(EXAMPLE.read_text())
        manifest["spec"] = merged(merged(manifest["spec"], SMALL), spec)
        self.kubectl("apply", "--filename=-", objects=yaml.safe_dump(manifest))

    def patch(self, **spec: Any) -> None:
        self.kubectl("patch", "rljob", self.name, "--type=merge", f"--patch={json.dumps({'spec': spec})}")

    def kubectl(self, *arguments: str, objects: str = "") -> str:
        return self.access.kubectl(f"--namespace={self.namespace}", *arguments, objects=objects)

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.kubectl("get", "rljob", self.name, "--output=json")).get("status", {})
        return status

    @property
    def phase(self) -> str:
        return str(self.status.get("phase"))

    @property
    def step(self) -> int:
        return int(self.status.get("progress", {}).get("step", 0))

    def pods(self, role: str = "") -> list[str]:
        selector = f"--selector=rljob.dev/job={self.name}" + (f",rljob.dev/role={role}" if role else "")
        return self.kubectl("get", "pods", selector, "--output=name").split()

    def run_in(self, role: str, *command: str) -> str:
        """In the first container of a pod of that role."""
        (pod,) = self.pods(role)
        return self.kubectl("exec", pod, "--", *command)

    def reaches(self, phase: str, within: float = 8 * MINUTES) -> dict[str, Any]:
        """The status, once it has that phase. within: seconds."""

        def there() -> dict[str, Any] | None:
            status = self.status
            if status.get("phase") == "Failed" != phase:
                raise AssertionError(f"the job has failed: {status}")
            return status if status.get("phase") == phase else None

        return self.eventually(there, f"phase {phase}", within)

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
