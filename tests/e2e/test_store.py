"""Images in containerd, with small ones: those of the nodes are brought there by `make e2e-smoke`."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from e2e.nodes import builder, store
from e2e.nodes.builder import Image

needs_images = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("buildah", "containerd", "ctr"))),
    reason="needs root, buildah and containerd, which make e2e-smoke installs",
)

NAMES = [f"localhost/changing:{tag}" for tag in range(4)]
CHANGES = 6


@pytest.fixture
def context(tmp_path, monkeypatch):
    """A folder whose image has three layers that stay and one that changes."""
    cache = Path(tempfile.mkdtemp())  # short: sockets' paths have at most 107 characters
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    folder = tmp_path / "context"
    folder.mkdir()
    for layer in range(3):
        (folder / f"{layer}").write_bytes(os.urandom(100_000))
    lines = ["FROM scratch", *(f"COPY {layer} /{layer}" for layer in range(3)), "COPY changing /changing"]
    (folder / "Dockerfile").write_text("\n".join(lines))
    yield folder
    shutil.rmtree(cache)


@needs_images
@pytest.mark.timeout(600)
def test_an_image_that_takes_anothers_name_keeps_the_layers_that_both_have(context):
    """containerd collected them while they were unpacked, in about one of six imports."""
    for _ in range(CHANGES):
        built = {}
        for name in NAMES:
            (context / "changing").write_bytes(os.urandom(1_000_000))
            built[name] = builder.build(Image(name, context / "Dockerfile", context))
        store.bring(built)
        assert store.stored() == built

    blobs = (store.folder() / "containerd" / store.BLOBS).glob("*/*")
    assert len([blob for blob in blobs if blob.stat().st_size > 100_000]) == 3 + len(NAMES), (
        "no image's layers are left"
    )
