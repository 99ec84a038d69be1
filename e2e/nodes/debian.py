"""A Debian with Python, for images to be built on: made by debootstrap from the packages that apt uses here."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from e2e.cluster.binaries import cache
from e2e.cluster.errors import ClusterError
from e2e.nodes.builder import APART
from e2e.nodes.machine import output

SUITE = "bookworm"

PACKAGES = ("ca-certificates", "libnuma1", "python3", "python3-pip")

LINKED = {"usr/local/bin/python": "/usr/bin/python3"}

REMOVED = (
    "dev/*",  # containers get their own
    "usr/lib/python3*/EXTERNALLY-MANAGED",  # as in the image that this stands in for
    "usr/share/doc/*",
    "usr/share/info/*",
    "usr/share/locale/*",
    "usr/share/man/*",
    "var/cache/apt/*",
    "var/lib/apt/lists/*",
    "var/log/*",
)


def rootfs() -> Path:
    """Its folder; made the first time."""
    recipe = hashlib.sha256(repr((SUITE, PACKAGES, LINKED, REMOVED)).encode()).hexdigest()[:8]
    folder = cache() / f"debian-{SUITE}-{recipe}"
    if not folder.is_dir():
        _make(folder)
    return folder


def _make(folder: Path) -> None:
    print(f"making a Debian {SUITE} with debootstrap (two minutes)", file=sys.stderr, flush=True)
    new = folder.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    command = [
        *APART, "debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(new), _mirror(),
    ]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise ClusterError("\n".join(["debootstrap failed:", *run.stdout.splitlines()[-10:]]))
    for pattern in REMOVED:
        for path in new.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    for link, target in LINKED.items():
        (new / link).symlink_to(target)
    new.rename(folder)


def _mirror() -> str:
    """The first that apt takes packages of the suite from."""
    listed = output("apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages")
    mirrors = [uri for name, _, uri in (line.partition(" ") for line in listed.splitlines()) if name == SUITE]
    if not mirrors:
        raise ClusterError(f"apt knows no packages of {SUITE}: run apt-get update, or add its main archive")
    return mirrors[0]
