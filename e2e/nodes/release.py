"""RLJob's operator in pods, from its chart and the images that were built here."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from e2e.cluster.access import Access
from e2e.cluster.binaries import DEFAULT
from e2e.cluster.build import build
from e2e.cluster.helm import Helm
from e2e.cluster.plane import Plane
from e2e.cluster.sharing import shared
from e2e.nodes import images, kuberay, packages, up
from e2e.nodes.images import OPERATOR, REPOSITORY, TRAINER

NAMESPACE, RESTRICTED = kuberay.NAMESPACE, kuberay.RESTRICTED

PODS = (f"--namespace={NAMESPACE}", "--selector=app.kubernetes.io/name=rljob-operator")
"""kubectl's arguments that choose the operator's."""

CHART = REPOSITORY / "charts/rljob-operator"


NODES = 2


@contextmanager
def operated(folder: Path, helm_home: Path) -> Iterator[Plane]:
    """A cluster with real nodes and the operator in it; it goes with its last user."""
    prepare()
    with shared(folder, kubelets=NODES) as plane:
        install(plane.access, helm_home)
        yield plane


def prepare() -> None:
    """All that takes long the first time."""
    packages.ensure()  # first: it refuses to run without root
    build((*DEFAULT, "helm"))
    up.prepare()
    images.ensure((OPERATOR, TRAINER))


def install(access: Access, helm_home: Path, **values: object) -> None:
    """Or upgrade it, and wait until its pods are ready. values: of the chart, on top of what these images ask for."""
    repository, _, tag = OPERATOR.rpartition(":")
    given = {
        "image": {"repository": repository, "tag": tag},
        "operator": {"trainerImage": TRAINER, "pollSeconds": 1},
        **values,
    }
    options = ("--install", f"--namespace={NAMESPACE}", "--values=-", "--wait", "--timeout=3m")
    Helm(helm_home, access)("upgrade", "rljob-operator", str(CHART), *options, values=yaml.safe_dump(given))
