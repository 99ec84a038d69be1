"""Ray's address comes from this user's own file: another user's would lead the driver, and its token, to that user."""

import os
from pathlib import Path

import pytest

from rljob_trainer.local.private_folder import new_private_folder, read_private


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = new_private_folder("rljob-ray-") / "address"
    path.write_text("127.0.0.1:6379")
    return path


def test_an_own_file_is_read(address: Path) -> None:
    assert address.parent.stat().st_mode & 0o777 == 0o700
    assert read_private(address) == "127.0.0.1:6379"


@pytest.mark.parametrize("mode", [0o770, 0o707])
@pytest.mark.parametrize("of", ["folder", "file"])
def test_what_others_can_write_is_refused(address: Path, of: str, mode: int) -> None:
    (address if of == "file" else address.parent).chmod(mode)
    with pytest.raises(PermissionError, match=str(address.parent)):
        read_private(address)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
@pytest.mark.parametrize("of", ["folder", "file"])
def test_what_another_user_owns_is_refused(address: Path, of: str) -> None:
    os.chown(address if of == "file" else address.parent, 12345, -1)
    with pytest.raises(PermissionError, match=str(address.parent)):
        read_private(address)


def test_a_link_is_not_followed(address: Path) -> None:
    link = address.with_name("link")
    link.symlink_to(address)
    with pytest.raises(OSError, match="symbolic links"):
        read_private(link)
