"""What `make demo` asks of a cluster, and what it tells; it trains on real nodes only."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from e2e.cluster.access import Access
from e2e.cluster.errors import ClusterError
from e2e.nodes import demo


@dataclass(frozen=True)
class Cluster(Access):
    """Notes down what kubectl is asked for. there: labels of the demo's namespace; None where there is none."""

    there: dict[str, str] | None = None
    asked: list[str] = field(default_factory=list)
    applied: list[Any] = field(default_factory=list)

    def kubectl(self, *arguments: str, objects: str = "") -> str:
        self.asked.append(" ".join(arguments[:3]))
        if objects:
            self.applied.append(yaml.safe_load(objects))
        return json.dumps({"metadata": {"labels": self.there}}) if arguments[0] == "get" and self.there else ""


def test_a_second_demo_begins_without_the_first_ones_volume():
    cluster = Cluster(there=demo.LABELS)
    demo.renew_namespace(cluster)

    deletions = ["delete rljob --all", "delete namespace rljob-demo"]
    assert cluster.asked == ["get namespace rljob-demo", *deletions, "create --filename=-"]


def test_a_namespace_of_somebody_elses_is_left_alone():
    cluster = Cluster(there={"team": "a"})
    with pytest.raises(ClusterError, match="namespace rljob-demo that no demo has made"):
        demo.renew_namespace(cluster)

    assert cluster.asked == ["get namespace rljob-demo"]
