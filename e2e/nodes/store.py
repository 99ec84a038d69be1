"""Images as containerd keeps them, unpacked once and then shared by all nodes of this machine.

Layers are never written to, so a node's containerd gets them as links to the same files, in a second.
"""

import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.binaries import cache
from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import shown
from e2e.nodes import builder
from e2e.nodes.machine import output

NAMESPACE = "k8s.io"
"""Of containerd's images: what a kubelet sees."""

BLOBS = Path("io.containerd.content.v1.content/blobs")
DATABASES = "*/*.db"

START_SECONDS = 30.0


def folder() -> Path:
    return cache() / "images"


def _records() -> Path:
    return folder() / "images.json"


def stored() -> dict[str, str]:
    """Numbers of images, by name."""
    file = _records()
    found: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    return found


def bring(images: dict[str, str]) -> None:
    """Take images from buildah that are not here; by name, their numbers."""
    with locked():
        known = stored()
        new = {name: number for name, number in images.items() if known.get(name) != number}
        if not new:
            return
        with shown(f"unpacking images for the nodes ({len(new)} new)"), _containerd() as socket:
            _collect(socket)  # lest a layer that an import which was cut off has left goes while it is looked at
            for name, number in new.items():
                with _kept(socket, name):
                    _import(socket, name)
                known[name] = number
                _records().write_text(json.dumps(known))


def clone(target: Path) -> dict[str, str]:
    """Make a folder of containerd's that holds all images; by name, their numbers."""
    source = folder() / "containerd"
    with locked(fcntl.LOCK_SH):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            output("cp", "--archive", "--link", str(source), str(target))
        except ClusterError:  # the cluster's folder is on another disk
            shutil.rmtree(target, ignore_errors=True)
            output("cp", "--archive", str(source), str(target))
        for database in source.glob(DATABASES):  # which a node does write to
            copied = target / database.relative_to(source)
            copied.unlink()
            shutil.copyfile(database, copied)
        return stored()


@contextmanager
def locked(how: int = fcntl.LOCK_EX) -> Iterator[None]:
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / "lock").open("w") as lock:
        fcntl.flock(lock, how)
        yield


@contextmanager
def _containerd() -> Iterator[str]:
    """One that runs nothing; its socket."""
    home, run = folder() / "containerd", folder() / "run"
    socket = run / "containerd.sock"
    settings = folder() / "containerd.toml"
    unwanted = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]
    settings.write_text(
        f'version = 2\nroot = "{home}"\nstate = "{run}"\ndisabled_plugins = {json.dumps(unwanted)}\n'
        f'[grpc]\n  address = "{socket}"\n'
    )
    with (folder() / "containerd.log").open("w") as log:
        command = ["unshare", "--mount", "--propagation=private", "setpriv", "--pdeathsig=KILL"]
        process = subprocess.Popen([*command, "containerd", f"--config={settings}"], stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _answers(str(socket)):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise ClusterError(f"containerd does not start: see {log.name}")
                time.sleep(0.1)
            yield str(socket)
        finally:
            process.terminate()
            process.wait()


@contextmanager
def _kept(socket: str, name: str) -> Iterator[None]:
    """Leave a name's image where it is while a new one takes the name.

    Layers that both have belong to neither for a moment, and containerd 1.6 collects them in the middle of an import
    (its issue 3787).
    """
    images = _ctr(socket, "images")
    if name not in output(*images, "list", "--quiet").split():
        yield
        return
    kept = f"{name}-replaced"
    output(*images, "tag", "--force", name, kept)
    yield
    output(*images, "remove", "--sync", kept)


def _collect(socket: str) -> None:
    """Remove what no image needs any more."""
    leases = _ctr(socket, "leases")
    lease = output(*leases, "create").strip()
    output(*leases, "delete", "--sync", lease)


def _ctr(socket: str, *arguments: str) -> list[str]:
    return ["ctr", f"--address={socket}", f"--namespace={NAMESPACE}", *arguments]


def _answers(socket: str) -> bool:
    run = subprocess.run(["ctr", f"--address={socket}", "version"], capture_output=True, check=False)
    return run.returncode == 0


def _import(socket: str, name: str) -> None:
    """Through a layout whose known layers are links to containerd's own, so neither side writes them again."""
    layout = folder() / "layout"
    shutil.rmtree(layout, ignore_errors=True)
    known = _link_blobs(layout)
    builder.write(name, layout)
    archive = ["tar", f"--directory={layout}", *(f"--exclude={blob}" for blob in known), "--create", "."]
    command = _ctr(socket, "images", "import", "-")
    with subprocess.Popen(archive, stdout=subprocess.PIPE) as tar:
        run = subprocess.run(command, stdin=tar.stdout, capture_output=True, text=True, check=False)
    if run.returncode:
        raise ClusterError(f"cannot bring {name} into containerd: {run.stderr.strip()}")
    shutil.rmtree(layout)


def _link_blobs(layout: Path) -> list[str]:
    """Their paths in the layout."""
    found = folder() / "containerd" / BLOBS
    paths = []
    for blob in sorted(found.glob("*/*")):
        linked = layout / "blobs" / blob.relative_to(found)
        linked.parent.mkdir(parents=True, exist_ok=True)
        os.link(blob, linked)
        paths.append(f"./{linked.relative_to(layout)}")
    return paths
