"""`make cluster-up` and `make cluster-down`: a Kubernetes control plane with KubeRay and fake GPU nodes."""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from e2e.cluster.binaries import BINARIES, DEFAULT, GANGS, TESTED, TESTED_ELSEWHERE
from e2e.cluster.build import build
from e2e.cluster.errors import ClusterError
from e2e.cluster.fixtures import CONTEXT
from e2e.cluster.plane import Plane, default_folder
from e2e.cluster.sharing import guard


def main() -> None:
    arguments = _arguments()
    try:
        match arguments.command:
            case "up":
                up(Plane(arguments.dir), arguments)
            case "down":
                down(Plane(arguments.dir))
            case "build":
                build(arguments.binaries or (TESTED_ELSEWHERE if os.environ.get(CONTEXT) else TESTED))
                for name in arguments.binaries:
                    print(BINARIES[name].path)
            case "guard":
                guard(arguments.dir)
    except ClusterError as error:
        sys.exit(f"cluster: {error}")


def up(plane: Plane, asked: argparse.Namespace) -> None:
    build(DEFAULT)
    start = time.monotonic()
    started = plane.up(asked.nodes, asked.gpus, asked.kubelets, asked.kueue, asked.gang)
    seconds = time.monotonic() - start
    print(f"started {', '.join(started)} in {seconds:.0f} s" if started else "the cluster is already up")
    print(f"export KUBECONFIG={plane.layout.kubeconfig}")
    if shutil.which("kubectl") is None:
        print(f"export PATH=$PATH:{BINARIES['kubectl'].path.parent}")


def down(plane: Plane) -> None:
    print("the cluster is down" if plane.down() else f"there is no cluster in {plane.folder}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    folder = argparse.ArgumentParser(add_help=False)
    folder.add_argument("--dir", type=_folder, default=default_folder(), help="the cluster's folder (%(default)s)")
    up = commands.add_parser("up", parents=[folder], help="start what does not run")
    up.add_argument("--nodes", type=_at_least(1), default=4, help="how many fake nodes (%(default)s)")
    up.add_argument("--gpus", type=_at_least(0), default=8, help="of each fake node (%(default)s)")
    kubelets = "real nodes instead, with kubelet and containerd; needs root (%(default)s)"
    up.add_argument("--kubelets", type=int, default=0, choices=range(9), metavar="N", help=kubelets)
    up.add_argument("--kueue", action="store_true", help="with Kueue")
    up.add_argument("--gang", choices=GANGS, default="", help="with that scheduler of gangs")
    commands.add_parser("down", parents=[folder], help="end it and remove its folder")
    build = commands.add_parser("build", help="build programs, and print the paths of those named")
    build.add_argument("binaries", nargs="*", metavar="NAME", help=f"of {', '.join(BINARIES)}; what the tests need")
    commands.add_parser("guard", parents=[folder], help="take it down when no test uses it any more")
    return parser.parse_args()


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return int(text)

    return number


def _folder(text: str) -> Path:
    return Path(text).absolute()


if __name__ == "__main__":
    main()
