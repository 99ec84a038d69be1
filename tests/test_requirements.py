"""The locked requirements hold what the four pyproject.toml files ask for, on every supported Python."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tools.pins import constraints

ROOT = Path(__file__).parent.parent
FOLDERS = {"rljob-api": "crds", "rljob-operator": "operator", "rljob-trainer": "trainer"}


def pyproject(folder: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())


def workspace_asks() -> list[str]:
    root = pyproject(".")
    groups = root["dependency-groups"]
    dev = [line for line in groups["dev"] if isinstance(line, str)]
    return [*root["project"]["dependencies"], *dev, *groups["setup"], *groups["build"]]


LOCKS = {
    "cpu.txt": workspace_asks(),
    "cuda.txt": ["rljob-trainer[vllm,cluster,tensorboard]"],
    "setup.txt": pyproject(".")["dependency-groups"]["setup"],
    "build.txt": pyproject(".")["dependency-groups"]["build"],
    "operator.txt": ["rljob-operator"],
    "reasoning-gym.txt": pyproject(".")["dependency-groups"]["reasoning-gym"],
}


def third_party(lines: list[str]) -> list[Requirement]:
    """The requirements on packages that are not ours: a member of the workspace stands for what it asks for itself."""
    found = []
    for requirement in map(Requirement, lines):
        if requirement.name in FOLDERS:
            project = pyproject(FOLDERS[requirement.name])["project"]
            extras = [line for extra in requirement.extras for line in project["optional-dependencies"][extra]]
            found += third_party([*project["dependencies"], *extras])
        else:
            found.append(requirement)
    return found


def pins(lock: str, python: str) -> list[Requirement]:
    """The lines of a lock that hold on this Python."""
    target: dict[str, str] = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_machine": "x86_64",
    }
    lines = re.findall(r"^[a-z][^\\\n]*", (ROOT / "requirements" / lock).read_text(), re.MULTILINE)
    return [one for one in map(Requirement, lines) if one.marker is None or one.marker.evaluate(target)]


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_pins_each_package_once_and_satisfies_every_pyproject(lock: str, python: str) -> None:
    locked = pins(lock, python)
    versions = {canonicalize_name(one.name): Version(str(one.specifier).removeprefix("==")) for one in locked}
    unmet = [
        f"{wanted} (locked: {versions.get(canonicalize_name(wanted.name))})"
        for wanted in third_party(LOCKS[lock])
        if canonicalize_name(wanted.name) not in versions
        or not wanted.specifier.contains(versions[canonicalize_name(wanted.name)])
    ]

    assert len(versions) == len(locked)
    assert not unmet, "make lock, and commit requirements/"


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_registry_and_no_path_and_hashes_every_package(lock: str) -> None:
    text = (ROOT / "requirements" / lock).read_text()

    assert not re.search(r"://|^-|@|/", text, re.MULTILINE)
    assert not re.search(r"^[a-z].*[^\\]$", text, re.MULTILINE)  # the next line has the hash
    assert not re.search(r"\\\n[^ ]", text)


def test_both_engines_run_on_the_same_torch() -> None:
    torch = [one.specifier for lock in ("cpu.txt", "cuda.txt") for one in pins(lock, "3.11") if one.name == "torch"]

    assert len(torch) == 2
    assert torch[0] == torch[1]


def test_the_vllm_of_a_gpu_keeps_what_was_built_with_its_torch_and_the_one_for_cpus_goes_without() -> None:
    companions = {"torchaudio", "torchcodec", "torchvision"}

    assert companions <= {one.name for one in pins("cuda.txt", "3.11")}
    assert not companions & {one.name for one in pins("cpu.txt", "3.11")}


def test_make_lock_keeps_each_version_unless_the_package_is_named() -> None:
    numpy = ["numpy==1 ; python_full_version < '3.13' \\\n", "numpy==2 ; python_full_version >= '3.13' \\\n"]
    cpu = "".join(["ffi==1 \\\n", *numpy, "ray==2.60 \\\n"])
    cuda = "ffi==2 \\\nray==2.60 \\\n"

    assert constraints([cpu, cuda]) == [
        "numpy==1 ; python_full_version < '3.13'",
        "numpy==2 ; python_full_version >= '3.13'",
        "ray==2.60",
    ]
    assert constraints([cpu, cuda], ["numpy"]) == ["ray==2.60"]
    assert constraints([cpu, cuda], ["all"]) == []
