"""`make demo`: from nothing to a trained model in a Kubernetes cluster on this machine, with the job's columns live.

Real nodes (kubelet and containerd, so root), KubeRay, and the operator, installed by Helm from images that are built
here. What is there already is kept, so the second time is brief; the cluster stays, to be used.

--context NAME: a cluster of your kubeconfig instead, with KubeRay and the operator installed (docs/operations.md).
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.access import Access
from e2e.cluster.errors import ClusterError
from e2e.cluster.plane import Plane, default_folder
from e2e.nodes import release

EXAMPLE = Path("examples/reverse-text.yaml")
JOB = "reverse-text"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m e2e.nodes.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--context", help="of your kubeconfig: a cluster with KubeRay and the operator")
    options = parser.parse_args()
    try:
        access = Access(context=options.context) if options.context else local()
        sys.exit(0 if train(access) == "Succeeded" else 1)
    except ClusterError as error:
        sys.exit(f"demo: {error}")


def local() -> Access:
    release.prepare()
    plane = Plane(default_folder())
    _say("starting a cluster of two nodes" if not plane.running else "the cluster is up")
    plane.up(kubelets=release.NODES)
    _say("installing the operator")
    release.install(plane.access, plane.folder / "helm")
    return plane.access


def train(access: Access) -> str:
    """The phase in which it ended."""
    _say(f"kubectl apply --filename={EXAMPLE}")
    access.kubectl("delete", "rljob", JOB, "--ignore-not-found")
    access.kubectl("apply", f"--filename={EXAMPLE}")
    with _columns(access):
        access.kubectl("wait", "rljob", JOB, "--for=jsonpath={.status.completionTime}", "--timeout=60m")
    status = json.loads(access.kubectl("get", "rljob", JOB, "--output=json"))["status"]
    _say(f"{JOB}: {status['phase']}, reward {status['progress'].get('reward')}")
    _say(f"look at it:    {' '.join(access.command('describe', 'rljob', JOB))}")
    if access.kubeconfig is not None:
        _say("take it down:  make cluster-down")
    return str(status["phase"])


@contextmanager
def _columns(access: Access) -> Iterator[None]:
    """A line for each change, as kubectl shows it."""
    shown = subprocess.Popen(access.command("get", "rljob", JOB, "--watch"))
    try:
        yield
    finally:
        shown.terminate()
        shown.wait()


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
