"""A control plane with fake nodes and a real scheduler of gangs, and the operator there with the chart's rights.

Every test says by `on` which scheduler it needs; each scheduler has one control plane, whose 32 GPUs are the test's.
Drivers are played.
"""

import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from kubernetes.client import ApiClient

from e2e.cluster.binaries import GANGS
from e2e.cluster.build import build
from e2e.cluster.fixtures import CONTEXT, new_namespace
from e2e.cluster.helm import Helm
from e2e.cluster.plane import Plane
from e2e.cluster.sharing import shared
from e2e.scenarios.gangs.team import Team
from tests.charts.release import Release, installed
from tests.e2e.operator_process import running_operator
from tests.rljob_operator.played_head import PlayedHeads


@dataclass(frozen=True)
class Site:
    plane: Plane
    release: Release
    heads: PlayedHeads


def on(*schedulers: str, kueue: bool = False) -> pytest.MarkDecorator:
    """The test's clusters. Without a scheduler: one that has none."""
    names = [f"{each or 'none'}{'-and-kueue' * kueue}" for each in schedulers]
    asked = [{"gang": each, "kueue": kueue} for each in schedulers]
    return pytest.mark.parametrize("plane", asked, ids=names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def plane(request: pytest.FixtureRequest) -> Iterator[Plane]:
    if os.environ.get(CONTEXT):
        pytest.skip(f"needs a control plane with its own schedulers, and {CONTEXT} names a cluster")
    build((*GANGS.get(request.param["gang"], ()), "helm"))
    with shared(Path(tempfile.gettempdir()) / f"rljob-{uuid.uuid4().hex[:8]}", **request.param) as plane:
        yield plane


@pytest.fixture(scope="session")
def site(plane: Plane, helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder, gang = tmp_path_factory.mktemp("operator"), plane.layout.gang
    with installed(helm, plane.access) as release, PlayedHeads() as heads:
        release.install(namespaces=[], gang={gang: True} if gang else {}, kueue={"enabled": True})
        account = release.as_operator(folder / "kubeconfig")
        with running_operator(account, None, heads.template, folder, release.name):
            yield Site(plane, release, heads)


@pytest.fixture
def client(plane: Plane) -> Iterator[ApiClient]:
    with plane.access.client() as client:
        yield client


@pytest.fixture
def team(site: Site, client: ApiClient) -> Iterator[Callable[[], Team]]:
    """Makes one after the other, each in a namespace of its own."""
    with ExitStack() as stack:

        def make() -> Team:
            namespace = stack.enter_context(new_namespace(client))
            return Team(client, namespace, site.heads, site.plane.layout.gang)

        yield make
