"""A Debian with Python, for images to be built on: made by debootstrap, on Ubuntu and other Debians too."""

import hashlib
import shutil
import subprocess
import urllib.request
from pathlib import Path

from e2e.cluster.binaries import cache
from e2e.cluster.build import only_builder
from e2e.cluster.errors import ClusterError, NotHere
from e2e.cluster.progress import shown
from e2e.nodes.builder import APART
from e2e.nodes.machine import output
from e2e.nodes.packages import KEYRING

SUITE = "bookworm"

MIRROR = "http://deb.debian.org/debian"
"""Debian's own. Without TLS, as apt itself asks there: what counts is the signature."""

LISTS = ("apt-get", "indextargets", "--format", "$(CODENAME) $(ORIGIN) $(REPO_URI)", "Created-By: Packages")
""" "bookworm Debian http://deb.debian.org/debian/", a line for each part of an archive that apt knows here."""

WITH_ITS_OWN_RUN = ("sh", "-c", 'mount --no-mtab -t tmpfs tmpfs /run && exec "$@"', "-")
"""Before a command: what it mounts, mount notes in /run/mount, and would make that on this machine."""

REACH_SECONDS = 30

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
    if folder.is_dir():
        return folder
    with only_builder():
        if not folder.is_dir():
            _make(folder)
    return folder


def _make(folder: Path) -> None:
    new = folder.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    options = ["--variant=minbase", f"--include={','.join(PACKAGES)}"]
    mirror = known_mirror(output(*LISTS))
    if mirror is None:
        mirror = _public_mirror()
        options.append(f"--keyring={KEYRING}")  # else debootstrap does without where it finds none
    command = [*APART, *WITH_ITS_OWN_RUN, "debootstrap", *options, SUITE, str(new), mirror]
    with shown(f"making a Debian {SUITE} with debootstrap"):
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


def known_mirror(lists: str) -> str | None:
    """The first that apt takes Debian's packages of the suite from. lists: what LISTS prints."""
    entries = (line.split() for line in lists.splitlines())
    return next((entry[2] for entry in entries if entry[:2] == [SUITE, "Debian"]), None)


def _public_mirror() -> str:
    """Raises NotHere where it does not answer."""
    try:
        with urllib.request.urlopen(f"{MIRROR}/dists/{SUITE}/InRelease", timeout=REACH_SECONDS):
            return MIRROR
    except OSError as error:
        raise NotHere(
            f"images are built on Debian {SUITE}, which apt does not know here, and {MIRROR}: {error}"
        ) from error
