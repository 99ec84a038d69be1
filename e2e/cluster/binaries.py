"""The programs of the local cluster: which Go module each comes from, and where its build is kept."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster.errors import ClusterError

KUBERNETES = "1.36.3"
STAGING = "v0" + KUBERNETES.removeprefix("1")
"""Kubernetes publishes its libraries (k8s.io/api, ...) under their own numbers: v0.36.3 is v1.36.3's."""


@dataclass(frozen=True)
class Replaced:
    """A version of a required module. file, text: a source file that is added to it, for what only newer ones have."""

    module: str
    version: str
    file: str = ""
    text: str = ""


@dataclass(frozen=True)
class Binary:
    """One program.

    package: within the module; "" is the module's root. None builds no program: the data alone is wanted.
    staging: version of the modules that the module's own go.mod asks for at v0.0.0 and takes from its repository.
    variables: what the linker writes into the program, as PACKAGE.NAME=VALUE.
    data: folders of the module that belong to the program, such as its CRDs.
    replaced: what the build takes where the module asks for a version that Go's proxy lacks.
    """

    name: str
    module: str
    version: str
    package: str | None = ""
    staging: str = ""
    variables: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    replaced: tuple[Replaced, ...] = field(default=(), repr=False)

    @property
    def folder(self) -> Path:
        """Where its build is kept. The name changes with every field, so that a changed recipe is built again."""
        recipe = hashlib.sha256((repr(self) + "".join(map(str, self.replaced))).encode()).hexdigest()[:8]
        return cache() / f"{self.name}-{self.version}-{recipe}"

    @property
    def built(self) -> bool:
        return self.folder.is_dir()

    @property
    def path(self) -> Path:
        if not self.built:
            raise ClusterError(
                f"{self.name} {self.version} is not built: run .venv/bin/python -m e2e.cluster build {self.name}"
            )
        return self.folder / self.name

    def share(self, data: str) -> Path:
        """One of its `data` folders, published beside the program."""
        return self.path.parent / data


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rljob"


def _kubernetes(name: str) -> Binary:
    _, minor, _ = KUBERNETES.split(".")
    stamps = {"gitVersion": f"v{KUBERNETES}", "gitMajor": "1", "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    variables = tuple(f"{package}.{key}={value}" for package in packages for key, value in stamps.items())
    return Binary(name, "k8s.io/kubernetes", f"v{KUBERNETES}", f"cmd/{name}", STAGING, variables)


def _volcano(name: str, package: str, *data: str) -> Binary:
    """Its own go.mod takes volcano.sh/apis from its repository. The proxy's newest one lacks a constant."""
    constant = 'package v1beta1\n\nconst QueueAllocationGateKey = "scheduling.volcano.sh/queue-allocation-gate"\n'
    apis = Replaced("volcano.sh/apis", "v1.14.0", "pkg/apis/scheduling/v1beta1/gate.go", constant)
    return Binary(name, "volcano.sh/volcano", "v1.15.1", package, data=data, replaced=(apis,))


def _coscheduling(name: str, package: str, *data: str) -> Binary:
    translation = Replaced("k8s.io/csi-translation-lib", "v0.34.8")
    return Binary(name, "sigs.k8s.io/scheduler-plugins", "v0.34.7", package, data=data, replaced=(translation,))


_ALL = (
    Binary("etcd", "go.etcd.io/etcd/server/v3", "v3.7.3"),
    _kubernetes("kube-apiserver"),
    _kubernetes("kube-controller-manager"),
    _kubernetes("kube-scheduler"),
    _kubernetes("kubectl"),
    _kubernetes("kubelet"),
    _kubernetes("kube-proxy"),
    Binary("coredns", "github.com/coredns/coredns", "v1.14.7"),
    Binary("local-path-provisioner", "github.com/rancher/local-path-provisioner", "v0.0.30"),
    Binary(
        "kuberay-operator",
        "github.com/ray-project/kuberay/ray-operator",
        "v1.6.2",
        data=("config/crd/bases", "config/rbac", "config/manager"),
    ),
    Binary("kwok", "sigs.k8s.io/kwok", "v0.8.0", "cmd/kwok", data=("kustomize/stage",)),
    Binary("helm", "helm.sh/helm/v4", "v4.3.0", "cmd/helm"),
    Binary(
        "prometheus-operator",
        "github.com/prometheus-operator/prometheus-operator",
        "v0.85.0",
        package=None,
        data=("example/prometheus-operator-crd",),
    ),
    Binary(
        "kueue",
        "sigs.k8s.io/kueue",
        "v0.19.1",
        "cmd/kueue",
        # By default it keeps the certificate of its visibility server in /visibility; this is in memory.
        variables=("sigs.k8s.io/kueue/pkg/visibility.certDir=",),
        data=("charts/kueue",),
    ),
    _volcano("vc-scheduler", "cmd/scheduler", "config/crd", "installer/helm/chart/volcano/config"),
    _volcano("vc-controller-manager", "cmd/controller-manager"),
    _coscheduling("coscheduling-scheduler", "cmd/scheduler", "manifests"),
    _coscheduling("coscheduling-controller", "cmd/controller"),
)

BINARIES = {binary.name: binary for binary in _ALL}

DEFAULT = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "kuberay-operator",
    "kwok",
)
"""What `up` needs."""

NODES = ("kubelet", "kube-proxy", "coredns", "local-path-provisioner")
"""What real nodes need besides."""

KUEUE = ("kueue", "helm")
"""What Kueue needs besides: Helm renders its chart."""

GANGS: Mapping[str, tuple[str, ...]] = {
    "volcano": ("vc-scheduler", "vc-controller-manager"),
    "coscheduling": ("coscheduling-scheduler", "coscheduling-controller"),
    "native": (),
}
"""What each scheduler of gangs needs besides; Kubernetes' own needs nothing. Only scenarios of gangs have these."""

TESTED = (*DEFAULT, *KUEUE, "prometheus-operator")
"""What the tests need. The others are built when asked for."""

TESTED_ELSEWHERE = ("kubectl", "helm")
"""What they need on a cluster that is there, which E2E_KUBECONTEXT names."""
