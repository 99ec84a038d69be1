"""What a cluster with real nodes has besides them: a name server, and who makes volumes."""

import json
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.access import Access
from e2e.nodes.configuration import NAME_SERVER
from e2e.nodes.images import COREDNS, DEBIAN, PROVISIONER

_COREFILE = """\
.:53 {
    errors
    health
    ready
    kubernetes cluster.local in-addr.arpa {
        ttl 5
    }
    cache 5
}
"""

SYSTEM_NAMESPACE = "kube-system"

_PORT_53 = {"name": "net.ipv4.ip_unprivileged_port_start", "value": "53"}
"""The name server is not root, and listens where name servers do."""

_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}

_DNS_RULES = [
    {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"]},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
]

_VOLUME_RULES = [
    {"apiGroups": [""], "resources": ["nodes", "persistentvolumeclaims", "configmaps", "pods/log"],
     "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["persistentvolumes", "pods", "endpoints"], "verbs": ["*"]},
    {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
    {"apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": ["get", "list", "watch"]},
]  # fmt: skip

SOON_ELSEWHERE = [
    {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
    for state in ("not-ready", "unreachable")
]
"""Tolerations of pods that do not wait for five minutes where their node is lost."""

_HELPER = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "helper"},
    "spec": {"containers": [{"name": "helper-pod", "image": DEBIAN}]},
}
"""Makes and removes the folder of a volume, on a node."""


def install(access: Access, volumes: Path) -> None:
    """volumes: a folder of this machine, which all nodes see; so volumes may be ReadWriteMany."""
    volumes.mkdir(exist_ok=True)
    objects = [*_name_server(), *_volumes(volumes)]
    access.kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", objects=yaml.safe_dump_all(objects))


def _name_server() -> list[dict[str, Any]]:
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    container = {
        "name": "coredns",
        "image": COREDNS,
        "args": ["-conf", "/etc/coredns/Corefile"],
        "securityContext": _RESTRICTED | {"capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}},
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
    }
    return [
        *_account("coredns", _DNS_RULES),
        _object("v1", "ConfigMap", "coredns", data={"Corefile": _COREFILE}),
        _object("v1", "Service", "kube-dns",
                spec={"clusterIP": NAME_SERVER, "selector": {"app": "coredns"}, "ports": ports}),
        _deployment("coredns", container, dnsPolicy="Default", securityContext={"sysctls": [_PORT_53]}),
    ]  # fmt: skip


def _volumes(folder: Path) -> list[dict[str, Any]]:
    name = "local-path-provisioner"
    settings = {
        "config.json": json.dumps({"sharedFileSystemPath": str(folder)}),
        "setup": '#!/bin/sh\nset -eu\nmkdir -m 0777 -p "$VOL_DIR"\n',
        "teardown": '#!/bin/sh\nset -eu\nrm -rf "$VOL_DIR"\n',
        "helperPod.yaml": yaml.safe_dump(_HELPER),
    }
    container = {
        "name": name,
        "image": PROVISIONER,
        "args": [
            "start",
            "--config=/etc/config/config.json",
            f"--configmap-name={name}",
            f"--service-account-name={name}",
            f"--helper-image={DEBIAN}",
        ],
        "env": [
            {"name": "POD_NAMESPACE", "value": SYSTEM_NAMESPACE},
            {"name": "CONFIG_MOUNT_PATH", "value": "/etc/config/"},
        ],
        "securityContext": _RESTRICTED | {"capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/config"}],
    }  # fmt: skip
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "local-path", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "rancher.io/local-path",
        "volumeBindingMode": "Immediate",
    }
    return [
        *_account(name, _VOLUME_RULES),
        _object("v1", "ConfigMap", name, data=settings),
        _deployment(name, container),
        storage_class,
    ]


def _deployment(name: str, container: dict[str, Any], **pod: Any) -> dict[str, Any]:
    """Of one pod, which goes elsewhere soon after its node is lost. Its configuration is the ConfigMap of its name."""
    spec = {
        "serviceAccountName": name,
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": name}}],
        "tolerations": SOON_ELSEWHERE,
        **pod,
    }
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    selector = {"matchLabels": {"app": name}}
    return _object("apps/v1", "Deployment", name, spec={"selector": selector, "template": template})


def _account(name: str, rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    group = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": SYSTEM_NAMESPACE}],
    }
    return [_object("v1", "ServiceAccount", name), role, binding]


def _object(version: str, kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE}, **fields}
