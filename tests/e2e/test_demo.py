"""What `make demo` asks of a cluster, and what it tells; it trains on real nodes only."""

import json
import shutil
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from e2e.cluster.access import Access
from e2e.cluster.errors import ClusterError
from e2e.nodes import demo, release
from rljob_api.validation import validate


@dataclass(frozen=True)
class Cluster(Access):
    """Notes down what kubectl is asked for. there: labels of the demo's namespace; None where there is none."""

    there: dict[str, str] | None = None
    asked: list[str] = field(default_factory=list)
    applied: list[Any] = field(default_factory=list)

    def kubectl(self, *arguments: str, objects: str = "") -> str:
        self.asked.append(" ".join(arguments[:3]))
        if objects:
            self.applied.append(yaml.safe_load(objects))
        return json.dumps({"metadata": {"labels": self.there}}) if arguments[0] == "get" and self.there else ""


def test_a_demo_makes_a_namespace_that_admits_restricted_pods_only():
    cluster = Cluster()
    demo.renew_namespace(cluster)

    assert cluster.asked == ["get namespace rljob-demo", "create --filename=-"]
    (namespace,) = cluster.applied
    assert namespace["metadata"]["labels"].items() >= release.RESTRICTED.items()


def test_a_second_demo_begins_without_the_first_ones_volume():
    cluster = Cluster(there=demo.LABELS)
    demo.renew_namespace(cluster)

    deletions = ["delete rljob --all", "delete namespace rljob-demo"]
    assert cluster.asked == ["get namespace rljob-demo", *deletions, "create --filename=-"]


def test_a_namespace_of_somebody_elses_is_left_alone():
    cluster = Cluster(there={"team": "a"})
    with pytest.raises(ClusterError, match="namespace rljob-demo that no demo has made"):
        demo.renew_namespace(cluster)

    assert cluster.asked == ["get namespace rljob-demo"]


@pytest.mark.parametrize("interrupted", ["local", "train"])
def test_ctrl_c_says_what_goes_on_and_how_to_take_it_away(interrupted, monkeypatch, capsys):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.argv", ["demo"])
    monkeypatch.setattr(demo, "local", Cluster)
    monkeypatch.setattr(demo, interrupted, interrupt)
    with pytest.raises(SystemExit) as ended:
        demo.main()
    assert ended.value.code == 130
    said = capsys.readouterr().out
    assert "stopped looking; what was begun in the cluster goes on" in said
    assert "make cluster-down" in said
    assert ("kubectl rljob describe" in said) == (interrupted == "train")


HEADING = "NAME PHASE STEP REWARD GPUS RESTARTS AGE"
RUNS, ENDED, ENDED_LATER = (f"reverse-text {each}" for each in (
    "Running 199 0.7 0 0 70s", "Succeeded 200 0.8 0 0 71s", "Succeeded 200 0.8 0 0 72s"
))  # fmt: skip


@dataclass(frozen=True)
class Trained(Cluster):
    """Where the job ends. watched: what kubectl's watch shows until then."""

    watched: tuple[str, ...] = ()

    def command(self, *arguments: str) -> list[str]:
        return ["printf", "%s\\n", *self.watched]

    def kubectl(self, *arguments: str, objects: str = "") -> str:
        match arguments:
            case ["wait", *_]:
                time.sleep(1)  # so that the watch tells it all
                return ""
            case ["get", *_, "--no-headers"]:
                return ENDED_LATER
            case _:
                return json.dumps({"status": {"phase": "Succeeded", "progress": {"reward": 0.8}}})


@pytest.mark.parametrize(
    ("watched", "end"), [((HEADING, RUNS), ENDED_LATER), ((HEADING, RUNS, ENDED, ENDED_LATER), ENDED)], ids=len
)
def test_each_line_of_the_columns_is_shown_once_and_the_last_one_is_there(watched, end, capsys):
    assert demo.train(Trained(watched=watched)) == "Succeeded"
    shown = capsys.readouterr().out.splitlines()
    assert shown[1:] == [HEADING, RUNS, end, "reverse-text: Succeeded, reward 0.8"]


def test_the_volume_has_what_is_asked_for():
    (job,) = validate(demo.manifest({"accessMode": "ReadWriteOnce", "storageClassName": "nfs"}), "demo.yaml").jobs

    volume = job.spec.checkpoint.volume
    assert (volume.access_mode, volume.storage_class_name, volume.size) == ("ReadWriteOnce", "nfs", "1Gi")


def test_fake_nodes_are_told_of_before_anything_is_built(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "rljob/cluster").mkdir(parents=True)
    (tmp_path / "rljob/cluster/ports.json").write_text('{"ports": {}, "address": "127.0.0.1"}')
    monkeypatch.setattr(release, "prepare", lambda: pytest.fail("it builds"))

    with pytest.raises(ClusterError, match=r"has fake nodes: take it down first \(make cluster-down\)"):
        demo.local()


def test_the_last_lines_lead_to_the_cluster_of_the_demo(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/kubectl")
    monkeypatch.delenv("SUDO_USER", raising=False)
    told = "\n".join(demo.ways_on(Access(kubeconfig=tmp_path / "kubeconfig")))
    assert f"export KUBECONFIG={tmp_path}/kubeconfig\n" in told
    assert "kubectl rljob describe reverse-text --namespace rljob-demo\n" in told
    assert told.endswith("\n  make cluster-down")

    other = "\n".join(demo.ways_on(Access(context="kind-kind")))
    assert "KUBECONFIG" not in other
    assert other.endswith("kubectl --context kind-kind delete namespace rljob-demo")


def test_whoever_was_root_by_sudo_is_told_to_be_so_again(tmp_path, monkeypatch):
    """Root's cluster is in root's home."""
    monkeypatch.setenv("SUDO_USER", "somebody")
    for told in (demo.ways_on(Access(kubeconfig=tmp_path / "kubeconfig")), demo.stopped(None)):
        assert "\n".join(told).endswith("\n  sudo make cluster-down")
    assert "sudo" not in "\n".join(demo.ways_on(Access(context="kind-kind")))
