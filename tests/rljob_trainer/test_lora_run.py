"""Runs that train an adapter, as a person starts them."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from e2e.chaos.base import write_base
from rljob_trainer.checkpoint.manifest import RANKS, list_checkpoints
from rljob_trainer.checkpoint.shards import saved_shapes
from rljob_trainer.volume import Volume
from tests.rljob_trainer.run_support import TINY, exit_record, machine, trained, write_job


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_trains_an_adapter_resumes_it_and_exports_it(tmp_path: Path):
    base = write_base(tmp_path / "base", TINY, TINY["model"]["fromScratch"])
    model = {"fromScratch": None, "path": str(base), "lora": {"rank": 4}}
    job = write_job(tmp_path, model=model, actor={"learningRate": 1e-2}, checkpoint={"everySteps": 2})
    run = tmp_path / "run"
    with machine() as place:
        assert (ended := place.rljob("run", job, "--dir", run)).code == 0, ended.out
        assert (ended := place.rljob("run", job, "--dir", run, "--set", "training.steps=4")).code == 0, ended.out
        for arguments in (["adapter", "--adapter"], ["merged", "--dtype", "float32"]):
            ended = place.rljob("export", run, tmp_path / arguments[0], *arguments[1:])
            assert ended.code == 0, ended.out
        moved = base.rename(tmp_path / "moved")
        write_base(base, TINY, TINY["model"]["fromScratch"], seed=1)
        ended = place.rljob("run", job, "--dir", run, "--set", "training.steps=6")
        assert (ended.code, "not those of the model that was adapted" in ended.out) == (65, True), ended.out
        ended = place.rljob("eval", run, job)
        assert (ended.code, "with --base" in ended.out) == (65, True), ended.out
        ended = place.rljob("eval", run, job, "--base", moved)
        assert (ended.code, "mean@1" in ended.out) == (0, True), ended.out
    assert exit_record(run, 2)["code"] == 0
    lines = trained(run)
    assert all(line["sync/probe_mean"] < 1e-3 < line["sync/probe_moved"] for line in lines[1:])
    assert len({line["sync/bytes"] for line in lines}) == 1
    assert lines[0]["sync/bytes"] < base.joinpath("model.safetensors").stat().st_size
    shapes = saved_shapes(list_checkpoints(Volume(run))[-1].path / RANKS)
    assert all(".lora_" in name for name in shapes if name.startswith("policy.model"))
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    theirs = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(moved, dtype=torch.float32), str(tmp_path / "adapter")
    ).merge_and_unload()
    for (name, ours), other in zip(merged.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours, other, rtol=0, atol=1e-6, msg=name)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("merge", [False, True])
def test_vllm_generates_with_the_adapter_or_the_merged_model(merge: bool, tmp_path: Path):
    scratch = {"layers": 2, "hiddenSize": 64, "heads": 2}
    rollout = {"engine": "vllm", "samplesPerPrompt": 4}
    base = write_base(tmp_path / "base", TINY | {"rollout": rollout}, scratch)
    model = {"fromScratch": None, "path": str(base), "lora": {"rank": 4, "merge": merge}}
    job = write_job(tmp_path, model=model, rollout=rollout, actor={"learningRate": 1e-2}, training={"steps": 3})
    with machine() as place:
        assert (ended := place.rljob("run", job, "--dir", tmp_path / "run")).code == 0, ended.out
    lines = trained(tmp_path / "run")
    assert all(line["rollout/log_prob_diff_mean"] < 1e-3 for line in lines)
    assert [line["sync/probe_mean"] < 1e-3 < line["sync/probe_moved"] for line in lines[1:]] == [True, True]
    whole_model = base.joinpath("model.safetensors").stat().st_size / 2
    assert all((line["sync/bytes"] > whole_model) == merge for line in lines)
