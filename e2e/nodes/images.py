"""The images of a cluster with real nodes: what Kubernetes needs, and RLJob's own from their Dockerfiles."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from e2e.cluster.binaries import BINARIES, cache
from e2e.cluster.build import find_go, only_builder
from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import shown
from e2e.nodes import builder, debian, packages, store
from e2e.nodes.builder import Image
from e2e.nodes.configuration import PAUSE

REPOSITORY = Path(__file__).parents[2]
RECIPES = Path(__file__).with_name("dockerfiles")

DEBIAN = "localhost/rljob/debian:1"
COREDNS = "localhost/rljob/coredns:1"
PROVISIONER = "localhost/rljob/local-path-provisioner:1"
KUBERAY = "localhost/rljob/kuberay-operator:1"
OPERATOR = "localhost/rljob-operator:dev"
NEWER_OPERATOR, NEWER_VERSION = "localhost/rljob-operator:newer", "999.0"
TRAINER = "localhost/rljob-trainer:dev"
GPU_TRAINER = "localhost/rljob-trainer:gpu"

COMPILER = "gcc libc6-dev libpython3-dev"
"""What Triton compiles with. Debian's Python comes without its headers, unlike that of the image it stands in for."""


def _pause() -> Image:
    return Image(PAUSE, RECIPES / "pause/Dockerfile", _compiled(RECIPES / "pause/main.go", "pause"))


def _debian() -> Image:
    return Image(DEBIAN, RECIPES / "debian.Dockerfile", debian.rootfs())


def _coredns() -> Image:
    return Image(COREDNS, RECIPES / "coredns.Dockerfile", BINARIES["coredns"].path.parent)


def _provisioner() -> Image:
    folder = BINARIES["local-path-provisioner"].path.parent
    return Image(PROVISIONER, RECIPES / "local-path-provisioner.Dockerfile", folder)


def _kuberay() -> Image:
    folder = BINARIES["kuberay-operator"].path.parent
    return Image(KUBERAY, RECIPES / "kuberay-operator.Dockerfile", folder)


def operator() -> Image:
    return Image(OPERATOR, REPOSITORY / "operator/Dockerfile", REPOSITORY, _on_debian("PIP_INDEX_URL"))


def _newer_operator() -> Image:
    """Another version of it, which has to be built first, for jobs that live through an upgrade."""
    return Image(
        NEWER_OPERATOR, RECIPES / "newer-operator.Dockerfile", RECIPES,
        {"OPERATOR": OPERATOR, "VERSION": NEWER_VERSION},
    )  # fmt: skip


def trainer() -> Image:
    """For CPUs."""
    return _trainer(TRAINER, REQUIREMENTS="image-cpu.txt", PACKAGES="")


def _trainer(name: str, **choices: str) -> Image:
    arguments = {**_on_debian("PIP_INDEX_URL", "UV_DEFAULT_INDEX"), **choices, "UV_CACHE_DIR": builder.WHEELS}
    return Image(name, REPOSITORY / "runtime_image/Dockerfile", REPOSITORY, arguments)


def _on_debian(*settings: str) -> dict[str, str]:
    """With the registries of packages that this machine uses. settings: the variables that name them."""
    return {"BASE": DEBIAN, **{name: os.environ[name] for name in settings if name in os.environ}}


_IMAGES: dict[str, Callable[[], Image]] = {
    PAUSE: _pause,
    DEBIAN: _debian,
    COREDNS: _coredns,
    PROVISIONER: _provisioner,
    KUBERAY: _kuberay,
    OPERATOR: operator,
    NEWER_OPERATOR: _newer_operator,
    TRAINER: trainer,
}
"""In an order in which each finds what it is built on."""

SYSTEM = (PAUSE, DEBIAN, COREDNS, PROVISIONER, KUBERAY)
"""What a cluster needs; Debian is what prepares and removes volumes."""

ALL = tuple(_IMAGES)


def ensure(names: Iterable[str]) -> None:
    """Build those that have changed, and bring them to where nodes take them from. What has not changed goes unsaid."""
    wanted, known, built = set(names), store.stored(), {}
    for name in (name for name in _IMAGES if name in wanted):
        image = _IMAGES[name]()
        with shown(f"building {name}") as progress:
            built[name] = builder.build(image)
            progress.unchanged = known.get(name) == built[name]
    store.bring(built)


def gpu_trainer() -> str:
    """Build the image for GPUs, which no node here gets, and train a step in it, on CPUs. Returns what that printed."""
    packages.ensure()
    ensure([DEBIAN])
    with shown(f"building {GPU_TRAINER}"):
        builder.build(_trainer(GPU_TRAINER, PACKAGES=COMPILER))
    with shown("training a step in it"):
        return builder.run(GPU_TRAINER, REPOSITORY / "runtime_image/smoke.py")


def _compiled(source: Path, name: str) -> Path:
    """The folder of a program that is one file of Go."""
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:8]
    folder = cache() / f"{name}-{digest}"
    if folder.is_dir():
        return folder
    with only_builder():
        if not folder.is_dir():
            _compile(source, name, folder)
    return folder


def _compile(source: Path, name: str, folder: Path) -> None:
    new = folder.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    command = [find_go(), "build", "-ldflags=-s -w", "-o", str(new / name), str(source)]
    environment = {**os.environ, "CGO_ENABLED": "0", "GO111MODULE": "off"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        raise ClusterError(f"cannot build {source}: {run.stderr.strip()}")
    new.rename(folder)
