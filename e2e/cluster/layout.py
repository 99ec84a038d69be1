"""Where a cluster keeps its files and on which ports it listens: made once, before its first start."""

import base64
import json
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.certificates import KeyPair, issue, new_authority, new_key, private_pem, public_pem

HOST = "127.0.0.1"

SERVICES = "10.96.0.0/16"
"""Addresses of Services; only real nodes route them."""

_SERVER_NAMES = (
    HOST,
    "localhost",
    "10.96.0.1",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)

GANG_SCHEDULER = "gang-scheduler"
"""The user that Volcano's and scheduler-plugins' programs are."""

_USERS: Mapping[str, tuple[str, ...]] = {
    "admin": ("system:masters",),
    "system:kube-controller-manager": (),
    "system:kube-scheduler": (),
    "kuberay-operator": ("system:masters",),
    "kwok": ("system:masters",),
    GANG_SCHEDULER: ("system:masters",),
}
"""Who has a client certificate, and the groups in it."""

_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        # What asks for a generated name has none in the metadata of the call.
        {"level": "Request", "verbs": ["create"], "resources": [{"group": "", "resources": ["pods"]}]},
        {"level": "Metadata"},
    ],
}


@dataclass(frozen=True)
class Layout:
    """ports: by what listens there. address: where the API server listens, which real nodes and their pods reach.

    gang: which scheduler of gangs the cluster has; "" for none.
    """

    folder: Path
    ports: Mapping[str, int]
    address: str = HOST
    gang: str = ""

    @property
    def has_real_nodes(self) -> bool:
        return self.address != HOST

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.folder / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        """What was asked of the API server, by whom: a JSON object a line."""
        return self.folder / "audit.log"

    @property
    def audit_policy(self) -> Path:
        return self.folder / "audit-policy.yaml"

    def pki(self, file: str) -> Path:
        return self.folder / "pki" / file

    def kueue(self, file: str) -> Path:
        return self.folder / "kueue" / file

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def kubeconfig_of(self, user: str) -> Path:
        return self.kubeconfig if user == "admin" else self.pki(f"{user.removeprefix('system:')}.kubeconfig")

    def host(self, name: str) -> str:
        """On which address it listens."""
        return self.address if name == "kube-apiserver" else HOST

    def url(self, name: str, scheme: str = "https") -> str:
        return f"{scheme}://{self.host(name)}:{self.ports[name]}"


def load(folder: Path) -> Layout | None:
    """None where none was made, or not to its end."""
    file = folder / "ports.json"
    return Layout(folder, **json.loads(file.read_text())) if file.exists() else None


def make(folder: Path, listeners: Sequence[str], address: str = HOST, gang: str = "") -> Layout:
    layout = Layout(folder, free_ports(listeners), address, gang)
    for part in ("pki", "logs"):
        (folder / part).mkdir(exist_ok=True)
    layout.audit_policy.write_text(yaml.safe_dump(_AUDIT_POLICY))
    _write_pki(layout)
    unfinished = folder / "ports.json.new"
    unfinished.write_text(json.dumps({"ports": layout.ports, "address": address, "gang": gang}))
    unfinished.rename(folder / "ports.json")
    return layout


def free_ports(names: Sequence[str]) -> dict[str, int]:
    """Ports in TIME_WAIT: for a minute the kernel gives one to no program but that which asks for its number."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server((HOST, 0))) for _ in names]
        ports = [listener.getsockname()[1] for listener in listeners]
        for listener, port in zip(listeners, ports, strict=True):
            with socket.create_connection((HOST, port)):
                listener.accept()[0].close()
    return dict(zip(names, ports, strict=True))


def _write_pki(layout: Layout) -> None:
    authorities = {name: new_authority(f"rljob-{name}") for name in ("ca", "etcd-ca", "front-proxy-ca")}
    pairs = {
        **authorities,
        "server": issue(authorities["ca"], "kubernetes", hosts=tuple({*_SERVER_NAMES, layout.address})),
        "etcd": issue(authorities["etcd-ca"], "etcd", hosts=(HOST, "localhost")),
        "front-proxy": issue(authorities["front-proxy-ca"], "front-proxy"),
        "kubelet-client": issue(authorities["ca"], "kube-apiserver-kubelet-client", ("system:masters",)),
    }
    for name, pair in pairs.items():
        layout.pki(f"{name}.crt").write_bytes(pair.certificate_pem)
        write_secret(layout.pki(f"{name}.key"), pair.key_pem)
    tokens = new_key()
    write_secret(layout.pki("tokens.key"), private_pem(tokens))
    layout.pki("tokens.pub").write_bytes(public_pem(tokens))
    for user, groups in _USERS.items():
        write_kubeconfig(layout.kubeconfig_of(user), layout, user, issue(authorities["ca"], user, groups))


def _credentials(pair: KeyPair) -> dict[str, str]:
    return {"client-certificate-data": _base64(pair.certificate_pem), "client-key-data": _base64(pair.key_pem)}


def write_kubeconfig(path: Path, layout: Layout, user: str, pair: KeyPair) -> None:
    authority = _base64(layout.pki("ca.crt").read_bytes())
    server = {"server": layout.url("kube-apiserver"), "certificate-authority-data": authority}
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "rljob", "cluster": server}],
        "users": [{"name": user, "user": _credentials(pair)}],
        "contexts": [{"name": "rljob", "context": {"cluster": "rljob", "user": user}}],
        "current-context": "rljob",
    }
    write_secret(path, yaml.safe_dump(config).encode())


def write_secret(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
