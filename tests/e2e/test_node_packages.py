"""Debian's packages that real nodes need: what is missing is named, and installing starts no service."""

import os
import subprocess

import pytest

from e2e.cluster.errors import ClusterError
from e2e.nodes import packages


def test_missing_packages_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    with pytest.raises(ClusterError, match=r"real nodes need containerd, runc, .*: install them with your system"):
        packages.ensure()


@pytest.fixture
def policies(tmp_path, monkeypatch):
    """What policy of services apt-get finds at each call, on a machine where all packages are missing."""
    found = []

    def run(command, **_):
        found.append((command[1], packages.POLICY.read_text() if packages.POLICY.exists() else None))
        return subprocess.CompletedProcess(command, 1 if command[1] == "install" else 0, stderr="E: no space")

    (tmp_path / "apt-get").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(packages, "POLICY", tmp_path / "policy-rc.d")
    monkeypatch.setattr(subprocess, "run", run)
    return found


def test_no_service_starts_while_packages_are_installed_and_then_as_before(policies):
    with pytest.raises(ClusterError, match=r"apt-get install .* failed: E: no space"):
        packages.ensure()

    assert policies[0] == ("update", None)
    assert policies[1][0] == "install"
    assert policies[1][1].endswith("\nexit 101\n")
    assert not packages.POLICY.exists()


def test_a_machines_own_policy_of_services_is_kept(policies):
    packages.POLICY.write_text("its own")
    with pytest.raises(ClusterError):
        packages.ensure()

    assert policies[1] == ("install", "its own")
    assert packages.POLICY.read_text() == "its own"


def test_without_root_nothing_is_tried(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(ClusterError, match="real nodes need root"):
        packages.ensure()
