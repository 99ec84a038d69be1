"""A cluster's nodes get their images once, and one whose images are not those of now is refused."""

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from e2e.cluster import locks
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import Layout
from e2e.cluster.plane import Plane
from e2e.nodes import agents, builder, machine, network, store, up
from e2e.nodes import images as images_of_nodes
from e2e.nodes.builder import Image
from e2e.nodes.configuration import PAUSE
from e2e.nodes.images import COREDNS, PROVISIONER, ensure
from e2e.nodes.machine import Machine


@pytest.fixture
def images(tmp_path, monkeypatch):
    """Says what images are built now, by name their numbers; containerd's folder of them is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (store.folder() / "containerd").mkdir(parents=True)

    def built(**numbers):
        (store.folder() / "images.json").write_text(json.dumps(numbers))

    return built


@pytest.fixture
def started(images, tmp_path, monkeypatch):
    """The folder of a cluster whose two nodes were started, as far as their images go, while two images were built."""
    for owner, name in ((network, "plug"), (agents, "start"), (Machine, "boot")):
        monkeypatch.setattr(owner, name, lambda *_: None)
    images(operator="1", trainer="1")
    folder = tmp_path / "cluster"
    for number in range(2):
        up.start(Layout(folder, {}), Machine(folder, number))
    return folder


def test_a_node_goes_on_with_the_images_that_it_was_given(started):
    up.refuse_other_images(started)


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({"operator": "2", "trainer": "1"}, "operator"),
        ({"operator": "2", "trainer": "2"}, "operator, trainer"),
        ({"operator": "1", "trainer": "1", "debian": "1"}, "debian"),
    ],
)
def test_a_node_of_other_images_than_those_of_now_is_refused(started, images, now, told):
    images(**now)
    words = rf"node-0 of the cluster in {started} .* built: {told}; take the cluster down first \(make cluster-down\)"

    with pytest.raises(ClusterError, match=words):
        up.refuse_other_images(started)


def test_a_node_whose_images_were_cut_off_is_refused(started):
    (started / "nodes/node-1" / up.GIVEN).unlink()

    with pytest.raises(ClusterError, match=r"node-1 .* operator, trainer"):
        up.refuse_other_images(started)


def test_each_image_that_has_changed_has_one_line(images, monkeypatch, capsys):
    images(**{PAUSE: "1", COREDNS: "1"})
    made = {PAUSE: "1", COREDNS: "2", PROVISIONER: "1"}
    monkeypatch.setattr(builder, "build", lambda image: made[image.name])
    recipes = {name: partial(Image, name, Path(), Path()) for name in made}
    monkeypatch.setattr("e2e.nodes.images._IMAGES", recipes)
    brought = []
    monkeypatch.setattr(store, "bring", brought.append)

    ensure(made)
    assert brought == [made]
    assert capsys.readouterr().err.splitlines() == [
        f"building {COREDNS}: done after 0 s", f"building {PROVISIONER}: done after 0 s"
    ]  # fmt: skip


def test_a_new_node_is_refused_nothing(started, images):
    images(operator="2", trainer="1")
    for node in machine.machines(started):
        shutil.rmtree(node.folder / "lib/containerd")

    up.refuse_other_images(started)


def test_a_cluster_of_other_images_is_refused_before_anything_is_started(started, images, monkeypatch):
    monkeypatch.setattr("e2e.cluster.plane.build", lambda _: None)
    monkeypatch.setattr(up, "prepare", lambda: images(operator="2", trainer="1"))
    monkeypatch.setattr(Plane, "_bring_up", lambda *_: pytest.fail("it starts"))
    (started / locks.MARKER).touch()

    with pytest.raises(ClusterError, match=r"node-0 .* operator; take the cluster down first"):
        Plane(started).up(kubelets=2)


def test_two_at_once_compile_once(tmp_path, monkeypatch):
    """The second one would delete what the first one has begun."""
    builds, release = tmp_path / "builds", tmp_path / "release"
    go = tmp_path / "go"
    go.write_text(
        f"#!/bin/sh\necho compiled >> {builds}\nuntil [ -e {release} ]; do sleep 0.05; done\n"
        'mkdir -p "$(dirname "$4")"; echo program > "$4"\n'
    )
    go.chmod(0o755)
    (tmp_path / "main.go").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(images_of_nodes, "find_go", lambda: str(go))
    with ThreadPoolExecutor() as both:
        ways = [both.submit(images_of_nodes._compiled, tmp_path / "main.go", "pause") for _ in range(2)]
        time.sleep(0.5)  # enough for the second to begin as well, if it may
        release.touch()
        folders = [each.result() for each in ways]
    assert builds.read_text() == "compiled\n"
    assert [(each / "pause").read_text() for each in folders] == ["program\n"] * 2
