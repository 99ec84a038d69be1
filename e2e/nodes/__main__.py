"""`python -m e2e.nodes images`: builds the images that pods on real nodes run, RLJob's own among them."""

import argparse
import sys

from e2e.cluster.binaries import NODES
from e2e.cluster.build import build
from e2e.cluster.errors import ClusterError
from e2e.nodes import images, packages


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m e2e.nodes", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    named = commands.add_parser("images", help="build those named, or all, where they have changed")
    named.add_argument("names", nargs="*", metavar="NAME", help=", ".join(images.ALL))
    arguments = parser.parse_args()
    try:
        packages.ensure()
        build(NODES)
        images.ensure(arguments.names or images.ALL)
    except ClusterError as error:
        sys.exit(f"nodes: {error}")


if __name__ == "__main__":
    main()
