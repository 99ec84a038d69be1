"""`make demo`: from nothing to a trained model in a Kubernetes cluster on this machine, with the job's columns live.

Real nodes (kubelet and containerd, so root), KubeRay, and the operator, installed by Helm from images that are built
here. What is there already is kept, so the second time is brief; the cluster stays, to be used. Its nodes keep the
images that they were made with: where the code has changed since, it asks for `make cluster-down` first. The job has a
namespace of its own, `rljob-demo`, which each demo creates again, so it touches no user's jobs and finds no other run's
checkpoints.

--context NAME: a cluster of your kubeconfig instead, with KubeRay and the operator installed (docs/operations.md).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import IO

import yaml

from e2e.cluster.access import Access
from e2e.cluster.binaries import BINARIES
from e2e.cluster.errors import ClusterError
from e2e.cluster.plane import Plane, default_folder
from e2e.nodes import release

EXAMPLE = Path("examples/reverse-text.yaml")
JOB = "reverse-text"

NAMESPACE = "rljob-demo"
LABELS = {"rljob.dev/demo": "true", **release.RESTRICTED}
"""By the first a demo knows the namespace of another one."""

WITHIN = f"--namespace={NAMESPACE}"

INTERRUPTED = 130
"""The exit code of what ends by Ctrl-C, as shells have it."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m e2e.nodes.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--context", help="of your kubeconfig: a cluster with KubeRay and the operator")
    modes = ("ReadWriteMany", "ReadWriteOnce")
    parser.add_argument("--access-mode", choices=modes, help="of the job's volume; kind has ReadWriteOnce only")
    parser.add_argument("--storage-class", help="of the job's volume, where the default one is not for several nodes")
    options = parser.parse_args()
    access: Access | None = None
    try:
        access = Access(context=options.context) if options.context else local()
        renew_namespace(access)
        volume = {"accessMode": options.access_mode, "storageClassName": options.storage_class}
        phase = train(access, {name: value for name, value in volume.items() if value is not None})
    except ClusterError as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        _say("\n".join(["\nstopped looking; what was begun in the cluster goes on", *stopped(access)]))
        sys.exit(INTERRUPTED)
    _say("\n".join(ways_on(access)))
    sys.exit(0 if phase == "Succeeded" else 1)


def local() -> Access:
    plane = Plane(default_folder())
    plane.refuse_others(kubelets=release.NODES)
    release.prepare()
    _say("starting a cluster of two nodes" if not plane.running else "the cluster is up")
    plane.up(kubelets=release.NODES)
    _say("installing the operator")
    release.install(plane.access, plane.folder / "helm")
    return plane.access


def renew_namespace(access: Access) -> None:
    """With what an earlier demo left: its volume is kept when its job is deleted, and would begin with its end."""
    found = access.kubectl("get", "namespace", NAMESPACE, "--ignore-not-found", "--output=json")
    if found:
        if not LABELS.items() <= json.loads(found)["metadata"].get("labels", {}).items():
            raise ClusterError(f"there is a namespace {NAMESPACE} that no demo has made: remove it first")
        _say(f"removing the last demo's namespace {NAMESPACE}")
        access.kubectl("delete", "rljob", "--all", WITHIN, "--timeout=5m")  # first, while the operator may work there
        access.kubectl("delete", "namespace", NAMESPACE, "--timeout=5m")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": LABELS}}
    access.kubectl("create", "--filename=-", objects=yaml.safe_dump(namespace))


def train(access: Access, volume: Mapping[str, str] = MappingProxyType({})) -> str:
    """The phase in which it ended. volume: fields of spec.checkpoint.volume."""
    _say(f"kubectl apply {WITHIN} --filename={EXAMPLE}")
    access.kubectl("apply", WITHIN, "--filename=-", objects=manifest(volume))
    with _columns(access) as columns:
        access.kubectl("wait", "rljob", JOB, WITHIN, "--for=jsonpath={.status.completionTime}", "--timeout=60m")
    columns.show(access.kubectl("get", "rljob", JOB, WITHIN, "--no-headers"))  # the watch may not have had the last
    status = json.loads(access.kubectl("get", "rljob", JOB, WITHIN, "--output=json"))["status"]
    _say(f"{JOB}: {status['phase']}, reward {status.get('progress', {}).get('reward')}")
    return str(status["phase"])


def manifest(volume: Mapping[str, str]) -> str:
    """The example. volume: fields of its volume."""
    document = yaml.safe_load(EXAMPLE.read_text())
    document["spec"]["checkpoint"]["volume"] |= volume
    return yaml.safe_dump(document)


def stopped(access: Access | None) -> list[str]:
    """As ways_on, also where there is no cluster yet."""
    return [f"take it away:\n  {_take_down()}"] if access is None else ways_on(access)


def ways_on(access: Access) -> list[str]:
    """Lines for a shell: how to look at the job, and how to take everything away."""
    if access.context is not None:
        look, remove = (
            f" --context {access.context}",
            f"kubectl --context {access.context} delete namespace {NAMESPACE}",
        )
    else:
        look, remove = "", _take_down()
    kubectl = "" if shutil.which("kubectl") else f":{BINARIES['kubectl'].path.parent}"
    return [
        "look at it, as root (sudo -s):" if "SUDO_USER" in os.environ and access.context is None else "look at it:",
        *([f"  export KUBECONFIG={access.kubeconfig}"] if access.kubeconfig else []),
        f"  export PATH={Path('.venv/bin').absolute()}:$PATH{kubectl}    # kubectl rljob is there",
        f"  kubectl rljob describe {JOB} --namespace {NAMESPACE}{look}",
        f"take it away:\n  {remove}",
    ]


def _take_down() -> str:
    """Root by sudo has another home, which has no cluster."""
    return "sudo make cluster-down" if "SUDO_USER" in os.environ else "make cluster-down"


class _Columns:
    """kubectl's table: a line for each change. That the job is older is none."""

    def __init__(self) -> None:
        self._last: list[str] = []

    def show(self, line: str) -> None:
        if (columns := line.split()[:-1]) != self._last:
            _say(line.rstrip())
        self._last = columns


@contextmanager
def _columns(access: Access) -> Iterator[_Columns]:
    """Live, until the end of this."""
    columns = _Columns()
    command = access.command("get", "rljob", JOB, WITHIN, "--watch")
    watch = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    reader = Thread(target=_follow, args=(watch.stdout, columns))
    reader.start()
    try:
        yield columns
    finally:
        watch.terminate()
        reader.join()
        watch.wait()


def _follow(lines: IO[str], columns: _Columns) -> None:
    for line in lines:
        columns.show(line)


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
