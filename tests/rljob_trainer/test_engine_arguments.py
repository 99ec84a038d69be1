"""`spec.rollout.engineArguments`: what contradicts the API, and what the installed vLLM does not take."""

import importlib.util
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from rljob_trainer.engines.registry import argument_errors
from rljob_trainer.engines.vllm import arguments
from rljob_trainer.errors import JobError
from tests.rljob_trainer.cli_support import rljob

needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")

JOB: dict[str, Any] = {
    "apiVersion": "rljob.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "a"},
    "spec": {
        "model": {"fromScratch": {}},
        "data": {"train": ["synthetic://reverse-text?rows=8"]},
        "rewards": {"functions": [{"builtin": "exact_match"}]},
        "training": {"steps": 1},
    },
}


def said(given, engine="vllm", *, supervised=False):
    return [str(error) for error in argument_errors(engine, given, supervised=supervised)]


def test_what_contradicts_a_field_names_the_field_to_use():
    meant = {
        "max_num_seqs": "maxNumSeqs", "max_num_active_seqs": "maxNumSeqs", "quantization": "quantization",
        "num_gpu_blocks_override": "gpuMemoryUtilization",
    }  # fmt: skip
    for error, (name, field) in zip(said(dict.fromkeys(meant, 1)), meant.items(), strict=True):
        assert error == f"spec.rollout.engineArguments.{name}: set rollout.{field} instead"


@pytest.mark.parametrize(
    ("engine", "supervised", "reason"), [("hf", False, "engine hf"), ("vllm", True, "presets sft and dpo")]
)
def test_arguments_that_nothing_reads_are_refused(engine, supervised, reason):
    (error,) = said({"max_num_seqs": 4}, engine, supervised=supervised)
    assert error.startswith(f"spec.rollout.engineArguments: {reason}")
    assert not said({}, engine, supervised=supervised)


WRONG = {
    "kv_cache_dtyp": ("fp8", "has no argument of this name: write kv_cache_dtype"),
    "kv_cache_dtype": ("fp9", 'does not take "fp9"'),
    "disable_cascade_attn": ("yes", 'does not take "yes" (Input should be a valid boolean)'),
    "block_size": (16.5, "does not take 16.5"),
    "compilation_config": ({"mod": 3}, "does not take"),
}


@needs_vllm
@pytest.mark.parametrize("name", WRONG)
def test_what_vllm_does_not_take_is_named(name):
    value, reason = WRONG[name]
    with pytest.raises(JobError) as found:
        arguments.parsed({name: value})
    assert found.value.field == f"spec.rollout.engineArguments.{name}"
    assert reason in found.value.message


@needs_vllm
def test_what_vllm_takes_reaches_it_in_its_own_types():
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    given = {
        "disable_cascade_attn": True, "kv_cache_dtype": "fp8", "cpu_offload_gb": 4, "cpu_offload_params": ["a"],
        "attention_backend": "FLASH_ATTN", "compilation_config": {"cudagraph_capture_sizes": [1, 2]},
    }  # fmt: skip
    found = arguments.parsed(given)
    assert found.pop("compilation_config").cudagraph_capture_sizes == [1, 2]
    assert found == {
        "disable_cascade_attn": True, "kv_cache_dtype": "fp8", "cpu_offload_gb": 4.0, "cpu_offload_params": {"a"},
        "attention_backend": AttentionBackendEnum.FLASH_ATTN,
    }  # fmt: skip


@needs_vllm
def test_the_value_of_every_argument_can_be_judged():
    for wanted in arguments._taken().values():
        with suppress(ValidationError):  # and no error of another kind
            arguments._value(wanted, {"no": ["such value"]})


@needs_vllm
def test_validate_prints_each_with_its_line(tmp_path: Path):
    given = {name: value for name, (value, _) in WRONG.items()} | {"dtype": "half", "async_scheduling": True}
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump({**JOB, "spec": JOB["spec"] | {"rollout": {"engineArguments": given}}}))
    lines = file.read_text().splitlines()
    done = rljob("validate", file)
    assert done.returncode == 64
    for line in done.stdout.splitlines():
        number, field = int(line.split(":")[1]), line.split(": ")[1].rpartition(".")[2]
        assert lines[number - 1].lstrip().startswith(f"{field}:")
    assert len(done.stdout.splitlines()) == len(given) - 1
    assert json.dumps(WRONG["kv_cache_dtype"][0]) in done.stdout
