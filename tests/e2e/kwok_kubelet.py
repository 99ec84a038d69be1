"""A node of a test's own whose kubelet KWOK plays: `kubectl logs` reads files there, `kubectl exec` runs commands here.

API server ──logs, exec──> kwok ──┬── a file for each container
                                  └── the command, with a folder of the test first on its PATH
"""

import os
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import CoreV1Api

from e2e.cluster.access import Access
from e2e.cluster.binaries import BINARIES
from e2e.cluster.certificates import issue, new_authority
from e2e.cluster.fixtures import CONTEXT
from e2e.cluster.layout import HOST, free_ports

STAGES = ("node/fast", "node/heartbeat-with-lease", "pod/fast")


@dataclass(frozen=True)
class Kubelet:
    """Of the node of that name; only pods that name it come there."""

    node: str
    process: "subprocess.Popen[bytes]"


@contextmanager
def kubelet(
    access: Access, folder: Path, logs: Mapping[tuple[str, str], Path] | None = None, programs: Path | None = None
) -> Iterator[Kubelet]:
    """A new node, until the end.

    logs: files by pod and container; of a container's previous life, that with the suffix .previous.
    Skips where the cluster is another's: its API server does not reach this machine.
    """
    if access.cache is None:
        pytest.skip(f"needs a fake node, and {CONTEXT} names a cluster")
    node, port = f"kubelet-{uuid.uuid4().hex[:8]}", free_ports(["kubelet"])["kubelet"]
    command = [str(BINARIES["kwok"].path), *_flags(access, folder, node, port, logs or {})]
    environment = {**os.environ, "PATH": f"{programs or folder}:{os.environ['PATH']}"}
    with access.client() as client, (folder / "kwok.log").open("w") as log:
        core: Any = CoreV1Api(client)
        core.create_node(_node(node, port))
        with subprocess.Popen(command, env=environment, stdout=log, stderr=log) as kwok:
            try:
                yield Kubelet(node, kwok)
            finally:
                core.delete_node(node)
                kwok.terminate()


def _flags(
    access: Access, folder: Path, node: str, port: int, logs: Mapping[tuple[str, str], Path]
) -> Iterator[str]:  # fmt: skip
    pair = issue(new_authority("kubelet"), "kubelet", hosts=(HOST,))
    files = {
        "kubeconfig": yaml.safe_dump(access.settings()).encode(),
        "tls-cert-file": pair.certificate_pem,
        "tls-private-key-file": pair.key_pem,
        "config": yaml.safe_dump_all([_exec(), *(_logs(*of, file) for of, file in logs.items())]).encode(),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    kinds = (BINARIES["kwok"].share("kustomize/stage") / kind for kind in STAGES)
    stages = [str(file) for kind in kinds for file in sorted(kind.glob("*-*.yaml"))]
    yield from (f"--{name}={folder / name}" for name in files if name != "config")
    yield f"--config={','.join([str(folder / 'config'), *stages])}"
    yield f"--manage-single-node={node}"
    yield f"--server-address={HOST}:{port}"
    yield "--node-lease-duration-seconds=40"


def _node(name: str, port: int) -> dict[str, object]:
    addresses = [{"type": kind, "address": HOST} for kind in ("Hostname", "InternalIP")]  # else KWOK sets them
    endpoint = {"kubeletEndpoint": {"Port": port}}
    return {
        "metadata": {"name": name},
        "spec": {"unschedulable": True},
        "status": {"addresses": addresses, "daemonEndpoints": endpoint, "phase": "Running"},
    }


def _exec() -> dict[str, object]:
    return _configuration("ClusterExec", "all", {"execs": [{"local": {"workDir": "/"}}]})


def _logs(pod: str, container: str, file: Path) -> dict[str, object]:
    log = {"containers": [container], "logsFile": str(file), "previousLogsFile": f"{file}.previous", "follow": False}
    return _configuration("ClusterLogs", f"{pod}.{container}", {"selector": {"matchNames": [pod]}, "logs": [log]})


def _configuration(kind: str, name: str, spec: dict[str, object]) -> dict[str, object]:
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
