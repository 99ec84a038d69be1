"""Where the Debian that images are built on comes from, by made-up lists of apt's. It is made by e2e/scenarios."""

import subprocess
import urllib.error
import urllib.request

import pytest

from e2e.cluster.errors import ClusterError, NotHere
from e2e.nodes import debian, packages

BOOKWORM = """\
bookworm Docker https://download.docker.com/linux/debian/
bookworm-security Debian http://mirror.example/debian-security/
bookworm-updates Debian http://mirror.example/debian/
bookworm Debian http://mirror.example/debian/
bookworm Debian http://deb.debian.org/debian/
"""

TRIXIE = """\
trixie Debian http://mirror.example/debian/
bookworm Docker https://download.docker.com/linux/debian/
"""

NOBLE = """\
noble Ubuntu http://archive.ubuntu.com/ubuntu/
noble-security Ubuntu http://security.ubuntu.com/ubuntu/
"""

NEVER_FETCHED = "  http://archive.ubuntu.com/ubuntu/\n"


def test_what_apt_uses_here_is_used():
    assert debian.known_mirror(BOOKWORM) == "http://mirror.example/debian/"


@pytest.mark.parametrize("lists", [TRIXIE, NOBLE, NEVER_FETCHED, ""])
def test_another_system_has_no_mirror_of_its_own(lists):
    assert debian.known_mirror(lists) is None


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """debootstrap's arguments on a made-up Ubuntu, where it fails."""
    given = []

    def run(command, **_):
        given.extend(command[command.index("debootstrap") + 1 :])
        return subprocess.CompletedProcess(command, 1, stdout="E: what is wrong")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(debian, "output", lambda *_: NOBLE)
    monkeypatch.setattr(subprocess, "run", run)
    return given


def test_elsewhere_debians_own_mirror_is_used_and_its_signature_is_checked(commands, tmp_path, monkeypatch):
    monkeypatch.setattr(debian, "MIRROR", tmp_path.as_uri())
    (tmp_path / "dists/bookworm").mkdir(parents=True)
    (tmp_path / "dists/bookworm/InRelease").touch()

    with pytest.raises(ClusterError, match="what is wrong"):
        debian.rootfs()
    assert f"--keyring={packages.KEYRING}" in commands
    assert (commands[-3], commands[-1]) == ("bookworm", tmp_path.as_uri())


@pytest.mark.usefixtures("commands")
def test_a_machine_that_reaches_no_mirror_is_told_why(monkeypatch):
    def unreachable(*_, **__):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    with pytest.raises(NotHere, match=r"apt does not know here, and http://deb.debian.org/debian: .*not known"):
        debian.rootfs()
