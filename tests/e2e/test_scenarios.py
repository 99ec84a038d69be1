"""What `make e2e` keeps of its scenarios, which it runs again or leaves out elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.commits import ROOT, content
from e2e.cluster.fixtures import CONTEXT
from e2e.cluster_chaos.__main__ import _CODE as CHAOS_CODE
from e2e.scenarios.conftest import MEASURED, SECONDS
from e2e.scenarios.results import CODE, Recorder, Result, passed, read

pytest_plugins = ["pytester"]

STORY = """
import pytest

@pytest.fixture
def tidied():
    yield
    raise OSError("an object is left")

@pytest.fixture
def broken():
    raise OSError("there is no cluster")

def test_that_passes(record_property):
    record_property("{seconds}", 6.5)
    record_property("{measured}", {{"to its end": 1.5}})

def test_that_fails():
    assert False

def test_that_leaves_something(tidied):
    pass

def test_that_cannot_begin(broken):
    pass

def test_that_does_not_apply():
    pytest.skip("another cluster")
"""


def result(scenario: str, passed: bool, code: str) -> Result:
    return Result(scenario, passed, 1.0, None, "abc1234", "2026-11-24", code)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "scenarios.jsonl"


@pytest.fixture
def story(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(test_story=STORY.format(seconds=SECONDS, measured=MEASURED))
    return pytester


def run(story: pytest.Pytester, recorder: Recorder, *arguments: str) -> list[str]:
    """The scenarios that ran."""
    ran = story.inline_run("-p", "no:cacheprovider", *arguments, plugins=[recorder])
    reports = ran.getreports("pytest_runtest_logreport")
    return [each.nodeid.partition("::test_that_")[2] for each in reports if each.when == "setup"]


def test_a_scenario_that_leaves_something_has_not_passed(story, file):
    run(story, Recorder(file, "abc1234", "code"))

    kept = {each.scenario.partition("::test_that_")[2]: each for each in read(file)}
    assert {name: each.passed for name, each in kept.items()} == {
        "passes": True, "fails": False, "leaves_something": False, "cannot_begin": False
    }  # fmt: skip
    assert (kept["passes"].recovery, kept["passes"].measured) == (6.5, {"to its end": 1.5})
    assert {(each.commit, each.code) for each in kept.values()} == {("abc1234", "code")}


def test_the_same_command_goes_on_where_it_stopped(story, file):
    run(story, Recorder(file, "abc1234", "code"))

    others = ["fails", "leaves_something", "cannot_begin", "does_not_apply"]
    assert run(story, Recorder(file, "def5678", "code")) == others, "whatever was committed meanwhile"
    assert run(story, Recorder(file, "abc1234", "changed")) == ["passes", *others]
    assert run(story, Recorder(file, "abc1234", "code", again=True)) == ["passes", *others]


def test_the_last_run_with_the_same_code_decides():
    results = [
        result("failed later", True, "code"), result("failed later", False, "code"),
        result("mended", False, "code"), result("mended", True, "code"),
        result("of other code", True, "other"),
        result("failed with other code", True, "code"), result("failed with other code", False, "other"),
    ]  # fmt: skip
    assert passed(results, "code") == {"mended", "failed with other code"}


def test_the_code_is_what_is_there_committed_or_not(tmp_path):
    code, results = tmp_path / "code", tmp_path / "results"
    for folder in (code, results):
        folder.mkdir()
        (folder / "file").write_text("1")
    (tmp_path / ".gitignore").write_text("*.pyc\n")
    git(tmp_path, "init", "--quiet")
    first = content(["code"], tmp_path)

    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=first")
    (results / "file").write_text("2")
    (code / "file.pyc").write_text("2")
    assert content(["code"], tmp_path) == first

    (code / "file").write_text("2")
    changed = content(["code"], tmp_path)
    (code / "new").write_text("")
    added = content(["code"], tmp_path)
    (code / "file").unlink()
    assert len({first, changed, added, content(["code"], tmp_path), ""}) == 5
    assert content(["nothing"], tmp_path) == ""


def test_what_decides_results_is_there_and_holds_no_result():
    assert [path for path in CODE if not (ROOT / path).exists()] == []
    assert not any(path.startswith("docs") for path in CODE)


@pytest.mark.parametrize(("folder", "code"), [("e2e/scenarios", CODE), ("e2e/cluster_chaos", CHAOS_CODE)])
def test_what_results_are_made_with_decides_them(folder, code):
    files = [file.read_text() for file in (ROOT / folder).glob("*.py")]
    imported = {
        name for text in files for name in re.findall(r"^from ((?:e2e|tests)\.[\w.]+) import", text, re.MULTILINE)
    }
    paths = [name.replace(".", "/") for name in imported]
    folders = tuple(f"{each}/" for each in code)
    assert [path for path in paths if f"{path}.py" not in code and not f"{path}/".startswith(folders)] == []


def test_another_clusters_operator_and_nodes_are_left_alone():
    """That cluster does not even exist: nothing looks for it."""
    files = [
        f"e2e/scenarios/test_{name}.py" for name in ("operator", "security", "losses", "images", "queues", "bad_node")
    ]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-k", "not head and not worker", *files]
    environment = {**os.environ, CONTEXT: "none", "KUBECONFIG": os.devnull}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert "passed" not in ran.stdout
    assert f"drains a node, and {CONTEXT} names a cluster" in ran.stdout


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True)
