"""Where pods may go, and which scheduler places them: one argument of the renderers, for queues and gangs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rljob_operator.render.merge import merged


@dataclass(frozen=True, slots=True)
class Placement:
    """What is added to a pod template. tolerations come on top of the template's own."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    scheduler_name: str | None = None

    def on(self, template: Mapping[str, Any]) -> dict[str, Any]:
        """The template, placed. The placement wins: the quota was granted for it."""
        spec: dict[str, Any] = {}
        if self.node_selector:
            spec["nodeSelector"] = dict(self.node_selector)
        if self.tolerations:
            spec["tolerations"] = [*template.get("spec", {}).get("tolerations", ()), *self.tolerations]
        if self.scheduler_name is not None:
            spec["schedulerName"] = self.scheduler_name
        metadata = {"labels": dict(self.labels), "annotations": dict(self.annotations)}
        placed: dict[str, Any] = merged(template, {"metadata": metadata, "spec": spec})
        return placed
