"""The job of the scenarios, as it is sent to a cluster."""

from dataclasses import dataclass, field

import pytest

from e2e.cluster.access import Access
from e2e.scenarios.job import Job
from rljob_api.validation import validate


@dataclass(frozen=True)
class Cluster(Access):
    """Keeps what is applied to it."""

    applied: list[str] = field(default_factory=list)

    def kubectl(self, *_: str, objects: str = "") -> str:
        self.applied.append(objects)
        return ""


@pytest.mark.parametrize("mode", [None, "ReadWriteOnce"])
def test_its_volume_has_the_access_mode_that_the_environment_names(mode, monkeypatch):
    monkeypatch.delenv("E2E_ACCESS_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("E2E_ACCESS_MODE", mode)
    cluster = Cluster()
    Job(cluster, "somewhere").apply(checkpoint={"volume": {"retain": False}})

    (job,) = validate(cluster.applied[0], "applied.yaml").jobs
    volume = job.spec.checkpoint.volume
    assert (volume.access_mode, volume.retain, volume.size) == (mode, False, "1Gi")
