"""What real nodes take from Debian."""

import os
import shutil
import subprocess
import sys

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
    for command in (["update", "-qq"], ["install", "-qq", "--no-install-recommends", *packages]):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        run = subprocess.run(
            ["apt-get", *command, "--yes"], env=environment, capture_output=True, text=True, check=False
        )  # fmt: skip
        if run.returncode:
            raise ClusterError(f"apt-get {' '.join(command)} failed: {run.stderr.strip()}")
