"""`python -m e2e.nodes build`: all that takes long before a cluster with real nodes and the operator can start.

`python -m e2e.nodes images`: the images that its pods run alone, RLJob's own among them.

`python -m e2e.nodes gpu-image`: the trainer's image for GPUs (10 GB, 30 GB on the way), and one step in it, on CPUs.
"""

import argparse
import os
import sys

from e2e.cluster.binaries import NODES
from e2e.cluster.build import build
from e2e.cluster.errors import ClusterError, NotHere
from e2e.cluster.fixtures import CONTEXT
from e2e.nodes import images, packages, release


def main() -> None:
    arguments = _arguments()
    try:
        match arguments.command:
            case "build":
                build_all()
            case "images":
                packages.ensure()
                build((*NODES, "kuberay-operator"))
                images.ensure(arguments.names or images.ALL)
            case "gpu-image":
                print(images.gpu_trainer())
    except ClusterError as error:
        sys.exit(f"nodes: {error}")


def build_all() -> None:
    """Where scenarios do not run, or run elsewhere, it says so: pytest then does the same."""
    if context := os.environ.get(CONTEXT):
        print(f"nothing is built: {CONTEXT} names a cluster, {context}", file=sys.stderr)
    elif os.geteuid():
        print(f"nothing is built: {packages.NEED_ROOT}", file=sys.stderr)
    else:
        try:
            release.prepare()
        except NotHere as error:
            print(f"nothing is built: {error}", file=sys.stderr)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m e2e.nodes", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="programs, and all images, where they have changed; what scenarios need")
    commands.add_parser("gpu-image", help="build the trainer's image for GPUs, and train a step in it")
    named = commands.add_parser("images", help="build those named, or all, where they have changed")
    named.add_argument("names", nargs="*", metavar="NAME", help=", ".join(images.ALL))
    return parser.parse_args()


if __name__ == "__main__":
    main()
