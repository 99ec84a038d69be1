"""What operator/Dockerfile makes, as far as that goes without a container engine."""

import os
import re
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from e2e.nodes import images
from tests.charts.chart import ROOT
from tests.e2e.waiting import eventually

DOCKERFILE = ROOT / "operator/Dockerfile"
SENT = ROOT / "operator/Dockerfile.dockerignore"
LOCK = ROOT / "requirements/operator.txt"

NAMELESS = ("unshare", "--user", "--map-user=65532", "--map-group=65532")
"""Runs a command as a user that /etc/passwd does not know, as containers do."""

EVERY_MODULE = """
import importlib, pkgutil, rljob_operator
names = [module.name for module in pkgutil.walk_packages(rljob_operator.__path__, "rljob_operator.")]
for name in names:
    name.endswith("__main__") or importlib.import_module(name)
print(len(names))
"""


def test_what_is_copied_exists_and_is_sent_to_the_builder():
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
    sources = {source for line in copied for source in line.split()}

    assert sources == {line[1:] for line in SENT.read_text().splitlines() if line.startswith("!")}
    assert all((ROOT / source).exists() for source in sources)


@pytest.mark.parametrize("recipe", [images.operator, images.trainer])
def test_every_build_argument_reaches_what_reads_it(recipe, monkeypatch):
    """An argument ends with its stage, and one that no stage declares is ignored."""
    for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX"):
        monkeypatch.setenv(name, "https://packages.example/simple")
    made = recipe()
    text = made.dockerfile.read_text()
    assert set(made.arguments) <= set(re.findall(r"^ARG (\w+)", text, re.MULTILINE))

    for stage in re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]:
        asked = re.search(r"^ARG PIP_INDEX_URL$.*\bpip\b.* install ", stage, re.MULTILINE | re.DOTALL)
        assert asked or not re.search(r"\bpip\b.* install ", stage), stage


PACKAGING = (
    "pip", "pip-23.0.1.dist-info", "setuptools", "setuptools-66.1.1.egg-info", "setuptools-65.5.1.dist-info", "wheel",
    "wheel-0.38.4.egg-info", "pkg_resources", "_distutils_hack", "distutils-precedence.pth",
)  # fmt: skip
"""In dist-packages of Debian, or in site-packages of python:slim."""


@pytest.mark.parametrize("recipe", [images.operator, images.trainer])
def test_a_base_keeps_none_of_its_tools_of_packaging(recipe, tmp_path):
    """`rm` only says here what it would remove."""
    venv.create(tmp_path, with_pip=False, symlinks=True)
    (site,) = (tmp_path / "lib").glob("python*/site-packages")
    for name in PACKAGING:
        (site / name).mkdir()
    (site / "pip/__init__.py").touch()
    (removal,) = re.findall(r"^RUN (packages=(?:.*\\\n)+.*)$", recipe().dockerfile.read_text(), re.MULTILINE)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    command = ["sh", "-c", f"rm() {{ pwd; printf '%s\n' \"$@\"; }}\n{removal}"]
    ran = subprocess.run(command, env={"PATH": path}, check=True, capture_output=True, text=True)

    where, flags, *removed = ran.stdout.splitlines()
    assert (where, flags) == (str(site), "-rf")
    assert {each.name for each in site.iterdir()} <= set(removed)
    assert [name for name in removed if name.endswith("/ensurepip")], "it has a pip, too"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of the locked packages, as the tests' own environment has them, and of wheels of the members."""
    folder = tmp_path_factory.mktemp("image")
    venv.create(folder / "rljob", with_pip=False, symlinks=True)
    (site,) = (folder / "rljob/lib").glob("python*/site-packages")
    for requirement in locked():
        link(requirement, site)
    for member in ("crds", "operator"):
        build = [sys.executable, "-m", "hatchling", "build", "--target=wheel", f"--directory={folder}/wheels"]
        subprocess.run(build, cwd=ROOT / member, check=True, capture_output=True)
    install = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--no-deps", "--no-index", "--quiet"]
    wheels = (folder / "wheels").glob("*.whl")
    subprocess.run([*install, f"--python={folder}/rljob/bin/python", *wheels], check=True)
    return folder / "rljob/bin"


def locked() -> list[Requirement]:
    lines = re.findall(r"^[a-z][^\\\n]*", LOCK.read_text(), re.MULTILINE)
    return [each for each in map(Requirement, lines) if each.marker is None or each.marker.evaluate()]


def link(requirement: Requirement, site: Path) -> None:
    found = distribution(requirement.name)
    assert str(requirement.specifier) == f"=={found.version}", f"{requirement.name}: make setup"
    for entry in {file.parts[0] for file in found.files or ()} - {".."}:
        if not (site / entry).exists():
            (site / entry).symlink_to(Path(str(found.locate_file(entry))))


def outside(**variables: str) -> dict[str, str]:
    """The environment of a container: nothing of this one."""
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1", **variables}


def test_the_locked_packages_are_enough(image):
    run = [image / "python", "-c", EVERY_MODULE]
    loaded = subprocess.run(run, env=outside(), check=True, capture_output=True, text=True)

    assert int(loaded.stdout) > 40


@pytest.fixture
def nameless() -> tuple[str, ...]:
    if subprocess.run([*NAMELESS, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine lets nobody make user namespaces")
    return NAMELESS


def test_the_operator_runs_as_a_user_without_a_name(cluster, namespace, image, nameless, tmp_path):
    kubeconfig, log = tmp_path / "kubeconfig", tmp_path / "log"
    kubeconfig.write_text(yaml.safe_dump(cluster.settings()))
    options = [f"--namespace={namespace}", f"--operator-namespace={namespace}", "--listen=127.0.0.1:0"]
    with log.open("w") as output, subprocess.Popen(
        [*nameless, image / "rljob-operator", "run", *options],
        env=outside(KUBECONFIG=str(kubeconfig)), stdout=output, stderr=output,
    ) as operator:  # fmt: skip
        try:
            eventually(lambda: "lease_acquired" in log.read_text() or operator.poll() is not None)
        finally:
            operator.terminate()

    assert operator.returncode == 0, log.read_text()
