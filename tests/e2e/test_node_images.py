"""A cluster's nodes get their images once, and one whose images are not those of now is refused."""

import json

import pytest

from e2e.cluster import locks
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import Layout
from e2e.cluster.plane import Plane
from e2e.nodes import agents, network, store, up
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


def test_a_cluster_of_other_images_is_refused_before_anything_is_started(started, images, monkeypatch):
    monkeypatch.setattr("e2e.cluster.plane.build", lambda _: None)
    monkeypatch.setattr(up, "prepare", lambda: images(operator="2", trainer="1"))
    monkeypatch.setattr(Plane, "_bring_up", lambda *_: pytest.fail("it starts"))
    (started / locks.MARKER).touch()

    with pytest.raises(ClusterError, match=r"node-0 .* operator; take the cluster down first"):
        Plane(started).up(kubelets=2)
