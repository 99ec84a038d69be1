"""When the API server did what it was asked, by the clock of its audit log."""

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from e2e.cluster import kueue
from e2e.nodes import release

OPERATOR = f"system:serviceaccount:{release.NAMESPACE}:rljob-operator"
KUEUE = f"system:serviceaccount:{kueue.NAMESPACE}:{kueue.ACCOUNT}"

WRITES = ("create", "patch", "update")


@dataclass(frozen=True)
class Audit:
    """log: its file. namespace: the only one that is looked at."""

    log: Path
    namespace: str

    def writes(self, user: str, resource: str, name: str) -> list[float]:
        """Unix times of the user's successful writes of an object, oldest first. resource: such as workloads/status."""
        with self.log.open() as lines:
            events = [json.loads(line) for line in lines if self.namespace in line and user in line]
        return sorted(
            datetime.fromisoformat(event["stageTimestamp"]).timestamp()
            for event in events
            if event["user"].get("username") == user
            and event["verb"] in WRITES
            and event.get("responseStatus", {}).get("code", 0) < 300
            and (of := event.get("objectRef", {})).get("namespace") == self.namespace
            and "/".join(filter(None, (of["resource"], of.get("subresource")))) == resource
            and of.get("name") == name
        )
