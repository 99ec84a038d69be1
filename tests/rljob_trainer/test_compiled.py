"""Where compiled kernels are kept."""

import os

import pytest

from rljob_trainer.compute.compiled import compiled_folder, keep_compiled


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.setenv(name, "")  # so that what a test sets is undone
        monkeypatch.delenv(name)


def test_a_pod_keeps_kernels_on_the_volume_by_version_and_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    monkeypatch.setattr("rljob_trainer.compute.compiled.version", lambda _: "1.2")
    (tmp_path / "0000").mkdir()
    (tmp_path / "0000" / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 7\n")
    keep_compiled(compiled_folder(tmp_path), gpus=tmp_path)
    own = tmp_path / "compiled" / "torch1.2-triton1.2-vllm1.2-NVIDIA_H200"
    assert os.environ["VLLM_CACHE_ROOT"] == str(own / "vllm")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(own / "inductor")
    assert os.environ["TRITON_CACHE_DIR"] == "/mine"


def test_a_machine_keeps_them_where_the_user_does(tmp_path):
    keep_compiled(compiled_folder(tmp_path), gpus=tmp_path)
    assert "VLLM_CACHE_ROOT" not in os.environ
