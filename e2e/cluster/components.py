"""The cluster's components: the command line of each, and the URL that says that it is ready."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster.binaries import BINARIES
from e2e.cluster.layout import HOST, SERVICES, Layout


@dataclass(frozen=True)
class Component:
    """A program with its flags.

    listeners: names of its ports in the layout; its health is asked at the last.
    """

    name: str
    flags: Callable[[Layout], Mapping[str, object]]
    health: str
    listeners: tuple[str, ...]
    scheme: str = "https"
    variables: Mapping[str, str] = field(default_factory=dict)

    def command(self, layout: Layout) -> list[str]:
        flags = [f"--{name}={value}" for name, value in self.flags(layout).items()]
        return [str(BINARIES[self.name].path), *flags]

    def health_url(self, layout: Layout) -> str:
        return layout.url(self.listeners[-1], self.scheme) + self.health


def _etcd(layout: Layout) -> dict[str, object]:
    client, peer, health = (layout.url("etcd"), layout.url("etcd-peer"), layout.url("etcd-health", "http"))
    certificate, key, authority = (layout.pki(f"etcd{end}") for end in (".crt", ".key", "-ca.crt"))
    return {
        "name": "etcd",
        "data-dir": layout.folder / "etcd",
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"etcd={peer}",
        "listen-metrics-urls": health,
        "cert-file": certificate,
        "key-file": key,
        "trusted-ca-file": authority,
        "client-cert-auth": "true",
        "peer-cert-file": certificate,
        "peer-key-file": key,
        "peer-trusted-ca-file": authority,
        "peer-client-cert-auth": "true",
        "unsafe-no-fsync": "true",  # its data need not survive the machine
        "log-level": "warn",
    }


def _api_server(layout: Layout) -> dict[str, object]:
    return {
        "etcd-servers": layout.url("etcd"),
        "etcd-cafile": layout.pki("etcd-ca.crt"),
        "etcd-certfile": layout.pki("etcd.crt"),
        "etcd-keyfile": layout.pki("etcd.key"),
        **server(layout, "kube-apiserver"),
        "advertise-address": layout.address,
        # No Endpoints may hold a loopback address; there is one, and a user of it, only with real nodes.
        "endpoint-reconciler-type": "lease" if layout.has_real_nodes else "none",
        "kubelet-client-certificate": layout.pki("kubelet-client.crt"),
        "kubelet-client-key": layout.pki("kubelet-client.key"),
        # A kubelet that a test plays, for fake nodes, has a certificate of its own.
        **({"kubelet-certificate-authority": layout.pki("ca.crt")} if layout.has_real_nodes else {}),
        "kubelet-preferred-address-types": "InternalIP",
        "client-ca-file": layout.pki("ca.crt"),
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "OwnerReferencesPermissionEnforcement",  # as strict as the strictest clusters
        "allow-privileged": "true",
        "service-cluster-ip-range": SERVICES,
        "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
        "service-account-key-file": layout.pki("tokens.pub"),
        "service-account-signing-key-file": layout.pki("tokens.key"),
        "requestheader-client-ca-file": layout.pki("front-proxy-ca.crt"),
        "requestheader-allowed-names": "front-proxy",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-username-headers": "X-Remote-User",
        "proxy-client-cert-file": layout.pki("front-proxy.crt"),
        "proxy-client-key-file": layout.pki("front-proxy.key"),
        "audit-policy-file": layout.audit_policy,
        "audit-log-path": layout.audit_log,
        "audit-log-maxsize": 10_000,  # MiB: one file, never rotated
        **_gates(layout, "GenericWorkload"),
        **({"runtime-config": "scheduling.k8s.io/v1alpha2=true"} if layout.gang == "native" else {}),
    }


def _controller_manager(layout: Layout) -> dict[str, object]:
    return {
        "kubeconfig": layout.kubeconfig_of("system:kube-controller-manager"),
        **server(layout, "kube-controller-manager"),
        "leader-elect": "false",
        "use-service-account-credentials": "true",
        "root-ca-file": layout.pki("ca.crt"),
        "service-account-private-key-file": layout.pki("tokens.key"),
        "flex-volume-plugin-dir": layout.folder / "volume-plugins",  # made where it is not: by default below /usr
        **_gates(layout, "GenericWorkload"),  # it removes the finalizer of PodGroups
    }


def _scheduler(layout: Layout) -> dict[str, object]:
    return {
        "kubeconfig": layout.kubeconfig_of("system:kube-scheduler"),
        **server(layout, "kube-scheduler"),
        "leader-elect": "false",
        **_gates(layout, "GenericWorkload", "GangScheduling"),
    }


def _kuberay(layout: Layout) -> dict[str, object]:
    return {
        "kubeconfig": layout.kubeconfig_of("kuberay-operator"),
        "enable-leader-election": "false",
        "metrics-addr": "0",
        "health-probe-bind-address": f"{HOST}:{layout.ports['kuberay-operator']}",
    }


def _kueue(layout: Layout) -> dict[str, object]:
    return {
        "kubeconfig": layout.kueue("kubeconfig"),
        "config": layout.kueue("config.yaml"),
        "zap-log-level": 2,
    }


def _kwok(layout: Layout) -> dict[str, object]:
    return {
        "kubeconfig": layout.kubeconfig_of("kwok"),
        "config": ",".join(map(str, _stages())),
        "manage-all-nodes": "false",
        "manage-nodes-with-annotation-selector": "kwok.x-k8s.io/node=fake",
        "node-lease-duration-seconds": 40,
        "server-address": f"{HOST}:{layout.ports['kwok']}",
    }


def _stages() -> list[Path]:
    """How fake nodes, pods and volumes live. Those of chaos are for objects with the labels that they name."""
    folder = BINARIES["kwok"].share("kustomize/stage")
    kinds = ("node/fast", "node/heartbeat-with-lease", "node/chaos", "pod/fast", "pod/chaos", "volume/fast")
    return [file for kind in kinds for file in sorted((folder / kind).glob("*-*.yaml"))]


def server(layout: Layout, name: str) -> dict[str, object]:
    """Flags of a program that listens as Kubernetes' own do."""
    return {
        "bind-address": layout.host(name),
        "secure-port": layout.ports[name],
        "tls-cert-file": layout.pki("server.crt"),
        "tls-private-key-file": layout.pki("server.key"),
    }


def _gates(layout: Layout, *names: str) -> dict[str, object]:
    """Feature gates for gangs of Kubernetes' own scheduler, where a cluster has these."""
    return {"feature-gates": ",".join(f"{name}=true" for name in names)} if layout.gang == "native" else {}


STORAGE = (
    Component("etcd", _etcd, "/health", ("etcd", "etcd-peer", "etcd-health"), scheme="http"),
    Component("kube-apiserver", _api_server, "/readyz", ("kube-apiserver",)),
)
"""Each needs the one before it."""

CONTROLLERS = (
    Component("kube-controller-manager", _controller_manager, "/healthz", ("kube-controller-manager",)),
    Component("kube-scheduler", _scheduler, "/readyz", ("kube-scheduler",)),
)
"""They need the API server, not each other."""

FAKE_NODES = (
    Component("kwok", _kwok, "/healthz", ("kwok",), scheme="http"),
    Component(
        "kuberay-operator",
        _kuberay,
        "/readyz",
        ("kuberay-operator",),
        scheme="http",
        variables={"ENABLE_WEBHOOKS": "false"},
    ),
)
"""What fake nodes need. Real ones run KubeRay in a pod."""

KUEUE = Component("kueue", _kueue, "/readyz", ("kueue-webhooks", "kueue-visibility", "kueue"), scheme="http")
"""Only in clusters that ask for it (kueue.py)."""

COMPONENTS = {component.name: component for component in (*STORAGE, *CONTROLLERS, *FAKE_NODES)}
"""Those of every cluster with fake nodes, in the order of starting."""
