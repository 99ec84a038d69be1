"""Whoever writes RLJobs, and deletes what they please."""

from copy import deepcopy
from itertools import pairwise
from typing import Any

from rljob_api.schema import structural_schema, with_defaults
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.v1alpha1.rewards import Rewards
from rljob_operator.kube.kinds import POD_GROUPS, RLJOB, Key, Manifest
from rljob_operator.names import PRIORITY_LABEL, QUEUE_LABEL
from tests.rljob_operator.snapshots import SPEC
from tests.rljob_operator.world.api_server import ApiServer
from tests.rljob_operator.world.images import NOWHERE

KEY = Key("team", "job")
STEPS = 4

_SPEC = with_defaults(structural_schema(RLJobSpec), {**SPEC, "training": {"steps": STEPS}, "ttlAfterFinished": "60s"})

SERVED: dict[str, Any] = {
    "rewards": with_defaults(
        structural_schema(Rewards), {"models": [{"name": "rm", "path": "m", "kind": "classifier", "replicas": 2}]}
    )
}
"""The part of a spec with a reward model."""

MEASURED: dict[str, Any] = {"preflight": {"fabric": {"timeLimit": "60s"}}}
"""The part of a spec with a fabric preflight."""


def ganged(scheduler: str) -> dict[str, Any]:
    """The part of a spec whose pods start together."""
    return {"gang": {"scheduler": scheduler}}


_LABELS = {"queue": QUEUE_LABEL, "priority": PRIORITY_LABEL}
QUEUED: dict[str, Any] = {"labels": {QUEUE_LABEL: "lab"}}
"""What makes a job wait in a queue of Kueue."""

MISNAMED: dict[str, Any] = {"cluster": _SPEC["cluster"] | {"image": NOWHERE}}
MISSERVED: dict[str, Any] = {
    "rewards": SERVED["rewards"] | {"models": [model | {"image": NOWHERE} for model in SERVED["rewards"]["models"]]}
}
"""Parts of a spec with an image that is not there, of all pods or of the reward model's."""


class User:
    """Of one job."""

    def __init__(self, server: ApiServer) -> None:
        self._server, self._labels = server, {}

    def label(self, **labels: str | None) -> None:
        """Of the queue or of the priority; None takes it away."""
        if self.job is not None:
            self._server.patch(RLJOB, KEY, {"metadata": {"labels": {_LABELS[name]: labels[name] for name in labels}}})

    @property
    def job(self) -> Manifest | None:
        return self._server.find(RLJOB, KEY)

    def create(self, labels: Any = None, **spec: Any) -> None:
        """If there is none of the name. labels: those of the last one, unless they are given."""
        self._labels = self._labels if labels is None else labels
        if self.job is None:
            metadata = {"namespace": KEY.namespace, "name": KEY.name, "labels": self._labels}
            written = deepcopy(_SPEC) | spec
            self._server.create(
                {"apiVersion": RLJOB.api_version, "kind": RLJOB.name, "metadata": metadata, "spec": written}
            )

    def change(self, **spec: Any) -> None:
        if self.job is not None:
            self._server.patch(RLJOB, KEY, {"spec": spec})

    def more_steps(self) -> None:
        if self.job is not None:
            self.change(training={"steps": self.job["spec"]["training"]["steps"] + 1})

    def other_shape(self) -> None:
        """One node more or less, as the API server allows it."""
        if self.job is not None and self.job["spec"]["suspend"]:
            self.change(cluster={"nodes": 5 - self.job["spec"]["cluster"]["nodes"]})

    def another_server(self) -> None:
        """One server more or less, where there is a reward model, as the API server allows it."""
        if self.job is not None and (models := self.job["spec"]["rewards"].get("models")):
            spec, replicas = self.job["spec"], models[0]["replicas"]
            if spec["suspend"] or spec["gang"]["scheduler"] != "native" or replicas == 1:
                self.change(rewards={"models": [models[0] | {"replicas": 3 - replicas}]})

    def another_scheduler(self) -> None:
        """Of the gang, as the API server allows it."""
        if self.job is not None and self.job["spec"]["suspend"]:
            following = dict(pairwise(["none", *POD_GROUPS, "none"]))
            self.change(gang={"scheduler": following[self.job["spec"]["gang"]["scheduler"]]})

    def names(self, image: str | None, *, of_servers: bool = False, **spec: Any) -> None:
        """An image, as the API server allows it; None for that of all jobs. spec: what else is changed with it."""
        if self.job is None or not (self.job["spec"]["suspend"] or spec.get("suspend")):
            return
        models = self.job["spec"]["rewards"].get("models", ())
        if not of_servers:
            self.change(cluster={"image": image}, **spec)
        elif models:
            other = {name: value for name, value in models[0].items() if name != "image"}
            self.change(rewards={"models": [other | ({"image": image} if image else {})]}, **spec)

    def mends_images(self) -> None:
        """At once, as whoever sees what is wrong: suspended, the job may name others."""
        for of_servers in (False, True):
            self.names(None, of_servers=of_servers, suspend=True)

    @property
    def is_misnamed(self) -> bool:
        """Whether the job names an image that is not there."""
        spec = self.job["spec"] if self.job is not None else {"cluster": {}, "rewards": {}}
        return NOWHERE in (each.get("image") for each in (spec["cluster"], *spec["rewards"].get("models", ())))

    def of_tomorrow(self, value: str | None = "x") -> None:
        """With a field that only a later API has; None takes it away again."""
        self.change(training={"fieldOfTomorrow": value})

    def delete(self, propagation: str = "Background") -> None:
        if self.job is not None:
            self._server.delete(self.job, propagation=propagation)

    def delete_by_force(self) -> None:
        """Delete without waiting for finalizers there."""
        if self.job is not None:
            self._server.forced.add(self.job["metadata"]["uid"])
            self.delete()
            self._server.patch(RLJOB, KEY, {"metadata": {"finalizers": None}})
