"""Building from Go modules, as far as it goes without building."""

import dataclasses
import os
import re
import subprocess
import sys

import pytest

from e2e.cluster import build
from e2e.cluster.binaries import BINARIES, Binary, Replaced
from e2e.cluster.errors import ClusterError

GO_MOD = """module b
go 1.26
require (
\texample.com/staged v0.0.0
)
replace example.com/a => example.com/a v1.2.3
replace (
\texample.com/c => example.com/d v2.0.0
\texample.com/e => ./staging/e
)
"""


@pytest.fixture
def no_builds(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/rljob"


def put_go_first(folder, monkeypatch, compiling="echo compiled >> $0.builds"):
    """A go that only says what the real one says, and runs `compiling` instead of a compiler, with $target to write."""
    folder.mkdir()
    (folder / "go.mod").write_text("module a\n\ngo 1.26\n")
    program = folder / "go"
    program.write_text(
        f"""#!/bin/bash
        case $1 in
            version) echo go version go1.26.8 linux/amd64 ;;
            mod) echo '{{"GoMod": "{folder}/go.mod", "Dir": "{folder}"}}' ;;
            build) target=$6; {compiling}; echo program > $target ;;
        esac
        """
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return program


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


def test_a_changed_recipe_is_another_build(monkeypatch):
    kwok, other = BINARIES["kwok"], (Replaced("example.com/a", "v1.0.0"),)
    changes = ({"version": "v0.8.1"}, {"data": ()}, {"replaced": other})
    changed = {dataclasses.replace(kwok, **change).folder for change in changes}
    assert kwok.folder not in changed
    assert len(changed) == 3


def test_a_build_replaces_what_the_module_replaces_but_for_folders_and_for_what_is_lacking():
    lacking = (Replaced("example.com/c", "v2.0.1"), Replaced("example.com/e", "v1.0.0", "added.go", "package e\n"))
    binary = Binary("b", "example.com/b", "v1.0.0", staging="v0.1.0", replaced=lacking)
    assert [line for line in build.go_mod(binary, GO_MOD).splitlines() if "=>" in line] == [
        "replace example.com/a => example.com/a v1.2.3",
        "replace example.com/c => example.com/c v2.0.1",
        "replace example.com/staged => example.com/staged v0.1.0",
        "replace example.com/e => ./example.com/e",
    ]
