"""Images from Dockerfiles, by buildah, without a daemon and without a registry.

buildah runs in namespaces of its own, so whatever ends it leaves no mount behind.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster.binaries import cache
from e2e.cluster.errors import ClusterError

APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=private")
"""What a command that mounts is run by."""

CERTIFICATES = Path("/etc/ssl/certs")

_ANY_IMAGE = '{"default": [{"type": "insecureAcceptAnything"}]}'

ERROR_LINES = 40


@dataclass(frozen=True)
class Image:
    """name: with its registry, `localhost`, and its tag. context: the folder that its Dockerfile copies from."""

    name: str
    dockerfile: Path
    context: Path
    arguments: Mapping[str, str] = field(default_factory=dict)


def build(image: Image) -> str:
    """The image's number, once it is built. What has not changed since the last time is taken from there."""
    flags = [f"--build-arg={name}={value}" for name, value in image.arguments.items()]
    ignored = image.dockerfile.with_name(f"{image.dockerfile.name}.dockerignore")
    if ignored.exists():
        flags.append(f"--ignorefile={ignored}")
    flags += [f"--volume={source}:{target}:{how}" for source, target, how in _volumes()]
    _buildah(
        "bud", "--layers", "--pull-never", "--isolation=chroot", f"--signature-policy={_policy()}", *flags,
        f"--file={image.dockerfile}", f"--tag={image.name}", str(image.context),
    )  # fmt: skip
    return number(image.name)


def run(name: str, script: Path) -> str:
    """What a script of Python prints in a container of the image, as its user. The container is removed."""
    container = _buildah("from", "--pull-never", f"--signature-policy={_policy()}", name).strip()
    try:
        return _buildah("run", "--isolation=chroot", container, "python", "-c", script.read_text())
    finally:
        _buildah("rm", container)


def number(name: str) -> str:
    return _buildah("images", "--quiet", "--no-trunc", name).strip()


def write(name: str, layout: Path) -> None:
    """As an OCI layout, a folder. Layers that are there are left as they are."""
    _buildah(
        "push", "--quiet", f"--signature-policy={_policy()}", "--disable-compression", name, f"oci:{layout}:{name}"
    )


def _volumes() -> list[tuple[Path | str, str, str]]:
    """What of this machine a build uses: whom it trusts, its name servers, packages that it has fetched before."""
    wheels = Path(os.environ.get("UV_CACHE_DIR") or Path.home() / ".cache/uv")
    wheels.mkdir(parents=True, exist_ok=True)
    trust = [(CERTIFICATES, str(CERTIFICATES), "ro")] if CERTIFICATES.is_dir() else []
    return [*trust, ("/etc/resolv.conf", "/etc/resolv.conf", "ro"), (wheels, WHEELS, "rw")]


WHEELS = "/var/cache/uv"
"""Where a build finds uv's cache of this machine."""


def _policy() -> Path:
    return _kept("policy.json", _ANY_IMAGE)


def _settings() -> Path:
    """In place of this machine's. Without them buildah makes /etc/cni/net.d, also where no container has a network, and
    its `run` does not heed the flag that names another folder.
    """
    return _kept("containers.conf", f'[network]\nnetwork_config_dir = "{storage()}/cni"\n')


def _kept(name: str, text: str) -> Path:
    file = storage() / name
    if not file.exists():
        storage().mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return file


def storage() -> Path:
    return cache() / "buildah"


NOTES = Path("/var/lib/containers/cache")
"""Of the layers that it has written: buildah keeps them there whatever its --root, for any other buildah and podman."""


def _ours() -> Path:
    """A file that is there where the notes are by our builds alone."""
    return storage() / "notes-are-ours"


def notes() -> list[Path]:
    """The folder of buildah's notes, where our builds have made it; it is not needed to build again."""
    return [NOTES] if _ours().exists() else []


def remove_notes() -> None:
    """If they are ours, and the folder around them if nothing else is there."""
    for folder in notes():
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            folder.parent.rmdir()
        _ours().unlink(missing_ok=True)


def _buildah(*arguments: str) -> str:
    folders = [f"--root={storage()}/root", f"--runroot={storage()}/run", "--storage-driver=overlay"]
    temporary = storage() / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    if not NOTES.exists():
        _ours().touch()
    variables = {"TMPDIR": temporary, "BUILDAH_ISOLATION": "chroot", "CONTAINERS_CONF": _settings()}
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    run = subprocess.run(
        [*APART, "buildah", *folders, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if run.returncode:
        last = (run.stdout + run.stderr).splitlines()[-ERROR_LINES:]
        raise ClusterError("\n".join([f"buildah {arguments[0]} failed:", *last]))
    return run.stdout
