"""What real nodes take from Debian."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.errors import ClusterError

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

PROGRAMS = {
    "containerd": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "gpgv": "gpgv",
    KEYRING: "debian-archive-keyring",
}
"""Package by program; by these two debootstrap checks signatures."""

POLICY = Path("/usr/sbin/policy-rc.d")
"""What Debian's packages ask before they start a service of theirs; 101 is no."""

_NONE_STARTS = """\
#!/bin/sh
# Of RLJob's e2e/nodes/packages.py, while apt-get installs; to be removed, if that was cut off.
exit 101
"""

NEED_ROOT = "real nodes need root, for namespaces, mounts and cgroups"


def missing() -> list[str]:
    """Packages."""
    return [package for file, package in PROGRAMS.items() if shutil.which(file, os.F_OK) is None]


def ensure() -> None:
    """Install what is missing. Raises ClusterError where that, or real nodes, cannot be."""
    if os.geteuid() != 0:
        raise ClusterError(NEED_ROOT)
    if not (packages := missing()):
        return
    if shutil.which("apt-get") is None:
        raise ClusterError(f"real nodes need {', '.join(packages)}: install them with your system's package manager")
    print(f"installing {', '.join(packages)} with apt-get", file=sys.stderr, flush=True)
    _apt_get("update", "-qq")
    with _no_service_starts():
        _apt_get("install", "-qq", "--no-install-recommends", *packages)


@contextmanager
def _no_service_starts() -> Iterator[None]:
    """Each node starts a containerd of its own; one of this machine would outlive the cluster.

    A policy that the machine has already is left to decide.
    """
    if POLICY.exists() or POLICY.is_symlink():
        yield
        return
    try:
        POLICY.write_text(_NONE_STARTS)
        POLICY.chmod(0o755)
        yield
    finally:
        POLICY.unlink(missing_ok=True)


def _apt_get(*command: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run = subprocess.run(["apt-get", *command, "--yes"], env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        raise ClusterError(f"apt-get {' '.join(command)} failed: {run.stderr.strip()}")
