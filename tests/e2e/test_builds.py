"""Building from Go modules, as far as it goes without building."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster import build
from e2e.cluster.binaries import BINARIES, DEFAULT
from e2e.cluster.errors import ClusterError
from e2e.cluster.fixtures import CONTEXT

KUBERNETES_GO_MOD = """\
module k8s.io/kubernetes

go 1.26.0

require (
\tgithub.com/emicklei/go-restful/v3 v3.13.0
\tk8s.io/api v0.0.0
\tk8s.io/klog/v2 v2.140.0
)

replace k8s.io/api => ./staging/src/k8s.io/api
"""


GO_CHECK = Path(__file__).parents[2] / "tools/go.sh"
ROOT_CHECK = GO_CHECK.with_name("root.sh")

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "bash", "-s", "--")
"""Runs a script from its standard input, for that user may not read this checkout."""


@pytest.fixture
def no_builds(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/rljob"


def put_go_first(folder, monkeypatch, version="go1.26.8", compiling="echo compiled >> $0.builds"):
    """A go that only says what the real one says, and runs `compiling` instead of a compiler, with $target to write."""
    folder.mkdir()
    (folder / "go.mod").write_text("module a\n\ngo 1.26\n")
    program = folder / "go"
    program.write_text(
        f"""#!/bin/bash
        case $1 in
            version) echo go version {version} linux/amd64 ;;
            mod) echo '{{"GoMod": "{folder}/go.mod", "Dir": "{folder}"}}' ;;
            build) target=$6; {compiling}; echo program > $target ;;
        esac
        """
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return program


def test_missing_go_is_named_with_its_remedy(no_builds, monkeypatch):
    monkeypatch.setenv("PATH", str(no_builds))
    with pytest.raises(ClusterError, match=r"PATH has none: install Go 1\.26 or newer \(https://go\.dev/dl\)"):
        build.build(DEFAULT)


def test_an_old_go_is_named_with_its_remedy(no_builds, tmp_path, monkeypatch):
    put_go_first(tmp_path / "bin", monkeypatch, version="go1.22.3")
    with pytest.raises(ClusterError, match=r"go is go1\.22, which cannot build .*: install Go 1\.26 or newer"):
        build.build(DEFAULT)


def test_make_says_so_before_anything_else(no_builds, tmp_path, monkeypatch):
    put_go_first(tmp_path / "go", monkeypatch, version="go1.19.8")
    monkeypatch.delenv(CONTEXT, raising=False)
    oldest = ".".join(str(number) for number in build.GO)
    check = subprocess.run([GO_CHECK], check=False, capture_output=True, text=True)
    assert (check.returncode, f"Go {oldest} or newer, and PATH has 1.19.8: install it" in check.stderr) == (1, True)

    assert may_go_on("demo", "--context", "kind"), "a cluster that is there"
    (no_builds / "kube-apiserver-1").mkdir(parents=True)
    assert may_go_on("test"), "one was built before"


def test_for_a_cluster_that_is_there_only_the_tests_kubectl_and_helm_are_built(no_builds, tmp_path, monkeypatch):
    go = put_go_first(tmp_path / "go", monkeypatch, version="go1.19.8")
    monkeypatch.setenv(CONTEXT, "kind")
    assert may_go_on("e2e-smoke", "-k", "test_life")
    assert not may_go_on("test")

    go.write_text(go.read_text().replace("go1.19.8", "go1.26.8"))
    subprocess.run([sys.executable, "-m", "e2e.cluster", "build"], check=True, capture_output=True)
    assert {name for name, binary in BINARIES.items() if binary.built} == {"kubectl", "helm"}
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert may_go_on("test-slow")


def may_go_on(*arguments):
    return subprocess.run([GO_CHECK, *arguments], check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_make_tells_whoever_is_not_root_before_anything_else():
    def check(*command):
        return subprocess.run(command, input=ROOT_CHECK.read_text(), check=False, capture_output=True, text=True)

    refused = check(*NOBODY, "demo")
    assert (refused.returncode, 'sudo env "PATH=$PATH" make demo\n' in refused.stderr) == (1, True)
    assert check(*NOBODY, "demo", "--context", "kind").returncode == 0, "a cluster that is there"
    assert check(ROOT_CHECK, "demo").returncode == 0

    refused = check(*NOBODY, "cluster-up", "--kubelets", "2")
    assert (refused.returncode, 'make cluster-up ARGS="--kubelets 2"\n' in refused.stderr) == (1, True)
    assert check(*NOBODY, "setup", "cluster-up", "--nodes", "64").returncode == 0, "fake nodes"


def test_the_command_tells_a_person_and_not_a_traceback(no_builds):
    environment = {**os.environ, "PATH": str(no_builds)}
    command = [sys.executable, "-m", "e2e.cluster", "up", f"--dir={no_builds}/cluster"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.startswith("cluster: the local cluster is built with Go, and PATH has none: install Go")
    assert not no_builds.exists(), "nothing is left where nothing was started"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("guard", f"--dir={__file__}"), f"cluster: {__file__} cannot be a folder: File exists: give --dir another"),
        (("guard", "--dir=/proc/x"), "cluster: /proc/x cannot be a folder: No such file or directory: give"),
        (("build", "helmm"), "cluster: helmm is none of the programs that are built here: etcd, kube-apiserver, "),
        (("up", "--nodes=0"), "argument --nodes: 0 is less than 1"),
        (("up", "--gpus=-1"), "argument --gpus: -1 is less than 0"),
    ],
)
def test_what_cannot_be_done_is_told_at_once(arguments, told):
    command = [sys.executable, "-m", "e2e.cluster", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode != 0
    assert told in run.stderr
    assert "Traceback" not in run.stderr


def test_two_builders_at_once_build_once(no_builds, tmp_path, monkeypatch):
    compiling = "until [ -e $0.release ]; do sleep 0.1; done; echo compiled >> $0.builds"
    go = put_go_first(tmp_path / "bin", monkeypatch, compiling=compiling)
    with start_builder() as first:
        assert re.fullmatch(r"building etcd v3\.7\.3 \(1 of 1\): \d s\n", first.stderr.readline())
        with start_builder() as second:
            assert second.stderr.readline() == "another process is building; waiting for it\n"
            go.with_name("go.release").touch()
            assert second.stderr.read() == ""
    assert (first.returncode, second.returncode) == (0, 0)
    assert go.with_name("go.builds").read_text() == "compiled\n"
    assert BINARIES["etcd"].path.read_text() == "program\n"


def start_builder():
    command = [sys.executable, "-m", "e2e.cluster", "build", "etcd"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def test_a_failed_build_shows_its_last_lines_and_publishes_nothing(no_builds, tmp_path, monkeypatch):
    put_go_first(tmp_path / "bin", monkeypatch, compiling="seq 100; exit 1")
    with pytest.raises(ClusterError, match=r"(?s)^building etcd v3\.7\.3 \(1 of 1\) failed:\n86\n.*100$"):
        build.build(["etcd"])
    assert not BINARIES["etcd"].built


def test_what_a_killed_builder_left_is_no_obstacle(no_builds, tmp_path, monkeypatch):
    put_go_first(tmp_path / "bin", monkeypatch)
    (no_builds / ".building/result").mkdir(parents=True)
    (no_builds / ".building/result/etcd").write_text("half of a program")
    build.build(["etcd"])
    assert BINARIES["etcd"].path.read_text() == "program\n"


def test_kubernetes_libraries_come_from_their_own_modules():
    assert build.go_mod(BINARIES["kube-apiserver"], KUBERNETES_GO_MOD) == (
        "module build\ngo 1.26.0\nrequire k8s.io/kubernetes v1.36.3\nreplace k8s.io/api => k8s.io/api v0.36.3\n"
    )


def test_other_modules_need_no_replacements():
    original = "module go.etcd.io/etcd/server/v3\n\ngo 1.26\n\nreplace go.etcd.io/etcd/api/v3 => ../api\n"
    assert build.go_mod(BINARIES["etcd"], original) == (
        "module build\ngo 1.26\nrequire go.etcd.io/etcd/server/v3 v3.7.3\n"
    )


def test_a_program_that_is_not_built_names_its_command(no_builds):
    with pytest.raises(
        ClusterError, match=r"helm v4\.3\.0 is not built: run \.venv/bin/python -m e2e\.cluster build helm"
    ):
        _ = BINARIES["helm"].path


def test_a_changed_recipe_is_another_build(monkeypatch):
    kwok = BINARIES["kwok"]
    changed = {dataclasses.replace(kwok, version="v0.8.1").folder, dataclasses.replace(kwok, data=()).folder}
    assert kwok.folder not in changed
    assert len(changed) == 2
