"""Runs that train an adapter, as a person starts them."""

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM

from rljob_api import resolve
from rljob_api.v1alpha1 import RLJobSpec
from rljob_trainer.attempt.model_folder import prepare_model_folder
from rljob_trainer.checkpoint.manifest import RANKS, list_checkpoints
from rljob_trainer.checkpoint.shards import saved_shapes
from rljob_trainer.data.tokenizer import make_tokenizer
from rljob_trainer.volume import Volume
from tests.rljob_trainer.run_support import TINY, exit_record, machine, trained, write_job


def write_base(folder: Path, **scratch: Any) -> Path:
    """A model folder of TINY's shape, with random weights and the tokenizer of its data."""
    spec = resolve(RLJobSpec.model_validate(TINY | {"model": {"fromScratch": TINY["model"]["fromScratch"] | scratch}}))
    prepare_model_folder(spec, folder, folder, make_tokenizer(spec, folder))
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    return folder


def test_a_run_trains_an_adapter_resumes_it_and_exports_it(tmp_path: Path):
    base = write_base(tmp_path / "base")
    model = {"fromScratch": None, "path": str(base), "lora": {"rank": 4}}
    job = write_job(tmp_path, model=model, actor={"learningRate": 1e-2}, checkpoint={"everySteps": 2})
    run = tmp_path / "run"
    with machine() as place:
        assert (ended := place.rljob("run", job, "--dir", run)).code == 0, ended.out
        assert (ended := place.rljob("run", job, "--dir", run, "--set", "training.steps=4")).code == 0, ended.out
        for arguments in (["adapter", "--adapter"], ["merged", "--dtype", "float32"]):
            ended = place.rljob("export", run, tmp_path / arguments[0], *arguments[1:])
            assert ended.code == 0, ended.out
    assert exit_record(run, 2)["code"] == 0
    first, *others = trained(run)[1:2] + trained(run)[2:]
    assert all(line["sync/probe_mean"] < 1e-3 < line["sync/probe_moved"] for line in trained(run)[1:])
    assert first["sync/bytes"] < 1e5
    assert {line["sync/bytes"] for line in others} == {first["sync/bytes"]}
    shapes = saved_shapes(list_checkpoints(Volume(run))[-1].path / RANKS)
    assert all(".lora_" in name for name in shapes if name.startswith("policy.model"))
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    theirs = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), str(tmp_path / "adapter")
    ).merge_and_unload()
    for (name, ours), other in zip(merged.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours, other, rtol=0, atol=1e-6, msg=name)
