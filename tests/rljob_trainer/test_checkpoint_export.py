"""A rank's checkpoint as a model folder; and shards that cannot be written or read."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from rljob_trainer.checkpoint.export import choose_checkpoint, export_model
from rljob_trainer.checkpoint.manifest import MANIFEST, MODEL, RANKS, commit
from rljob_trainer.errors import DataError, InfrastructureError, JobError, StorageFullError
from rljob_trainer.volume import Volume
from tests.rljob_trainer.checkpoint_support import begin_attempt, make_spec
from tests.rljob_trainer.cli_support import rljob
from tests.rljob_trainer.rank_support import alone, random_trajectories, write_model
from tests.rljob_trainer.rollout_support import forward_log_probs, write_model_dir
from tests.rljob_trainer.small_disk import mounted

TRAJECTORIES = random_trajectories(4)


def checkpoint_of(worker, folder, tokenizer_folder, run, step=1):
    """A checkpoint as the controller writes it. Returns it, and the policy's log-probabilities."""
    target = Volume(run).checkpoint(step, 1)
    staged = target.with_name(f".{target.name}.part")
    (staged / RANKS).mkdir(parents=True)
    AutoTokenizer.from_pretrained(tokenizer_folder).save_pretrained(staged / MODEL)
    (staged / MODEL / "config.json").write_bytes((Path(folder) / "config.json").read_bytes())
    GenerationConfig(temperature=0.3, do_sample=True).save_pretrained(staged / MODEL)
    worker.load(folder)
    worker.begin_stage("sft")
    worker.begin_save(str(staged / RANKS))
    worker.finish_save()
    log_probs = worker.log_probs(TRAJECTORIES)
    return commit(staged, target, step=step, attempt=1, reward=None), np.concatenate(log_probs)


@pytest.fixture
def finished(tmp_path, request):
    folder = write_model(tmp_path / "policy", getattr(request, "param", "qwen2"))
    tokenizer = write_model_dir(tmp_path / "tokenizer")
    return alone(make_spec(), checkpoint_of, folder, tokenizer, tmp_path / "run")


@pytest.mark.parametrize("finished", ["qwen2", "tied"], indirect=True)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.1)])
def test_the_exported_model_computes_what_the_policy_did(finished, tmp_path, dtype, tolerance):
    ref, expected = finished
    size = export_model(ref, tmp_path / "model", dtype)
    with safe_open(tmp_path / "model" / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {getattr(torch, dtype)}  # noqa: SIM118
    assert size == (tmp_path / "model" / "model.safetensors").stat().st_size
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(report.values())
    assert model.dtype == getattr(torch, dtype)
    ours = np.concatenate([response_log_probs(model.float(), sequence) for sequence in TRAJECTORIES])
    assert np.abs(ours - expected).mean() < tolerance
    assert AutoTokenizer.from_pretrained(tmp_path / "model").decode([5]) == "t5 "
    assert GenerationConfig.from_pretrained(tmp_path / "model").temperature == 0.3
    assert not list(tmp_path.glob(".*.part"))


def response_log_probs(model, sequence):
    prompt, response = np.split(sequence.token_ids, [sequence.prompt_tokens])
    return forward_log_probs(model, prompt, response)


def test_a_damaged_checkpoint_is_refused(finished, tmp_path):
    ref, _ = finished
    shard = next((ref.path / RANKS).glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"\0\0")
    with pytest.raises(InfrastructureError, match=rf"^checkpoint step-1-a1: ranks/{shard.name} is damaged"):
        export_model(ref, tmp_path / "model", "float32")
    assert not (tmp_path / "model").exists()


def test_a_target_that_holds_something_is_refused(finished, tmp_path):
    ref, _ = finished
    target = tmp_path / "model"
    target.mkdir()
    (target / "mine").touch()
    with pytest.raises(DataError, match="already exists"):
        export_model(ref, target, "float32")
    with pytest.raises(DataError, match="already exists"):
        export_model(ref, target / "mine", "float32")
    assert [path.name for path in target.iterdir()] == ["mine"]
    (target / "mine").unlink()
    assert export_model(ref, target, "float32") > 0


def test_a_target_that_cannot_be_written_is_named(finished, tmp_path):
    ref, _ = finished
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file/model cannot be written: Not a directory"):
        export_model(ref, tmp_path / "file" / "model", "float32")


def test_a_base_is_refused_where_it_means_nothing(finished, tmp_path):
    ref, _ = finished
    with pytest.raises(DataError, match="no adapter; leave out --base"):
        export_model(ref, tmp_path / "model", "float32", base=ref.path / MODEL)
    done = rljob("export", tmp_path, tmp_path / "model", "--adapter", "--base", tmp_path)
    assert done.returncode == 2
    assert "leave out --base or --adapter" in done.stderr


def test_a_checkpoint_that_lacks_its_model_is_named(finished, tmp_path):
    ref, _ = finished
    files = {name: entry for name, entry in ref.manifest.files.items() if not name.startswith(MODEL)}
    manifest = ref.manifest.model_copy(update={"files": files})
    shutil.rmtree(ref.path / MODEL)
    with pytest.raises(DataError, match=f"{ref.path}/model: "):
        export_model(replace(ref, manifest=manifest), tmp_path / "model", "float32")


def test_the_newest_checkpoint_is_chosen(finished, tmp_path):
    ref, _ = finished
    run = tmp_path / "run"
    assert choose_checkpoint(run, None) == choose_checkpoint(run, 1) == ref
    with pytest.raises(DataError, match="has no checkpoint of step 2; choose one of 1"):
        choose_checkpoint(run, 2)
    with pytest.raises(DataError, match="has no finished checkpoint"):
        choose_checkpoint(tmp_path / "nothing", None)


def test_an_older_checkpoint_does_not_stand_for_one_that_cannot_be_read(tmp_path):
    first = begin_attempt(Volume(tmp_path), 1)
    older, newest = first.save(1), first.save(2)
    (newest.path / MANIFEST).unlink()
    (newest.path / MANIFEST).mkdir()
    with pytest.raises(InfrastructureError, match=r"step-2-a1 cannot be read: .* with --step"):
        choose_checkpoint(tmp_path, None)
    assert choose_checkpoint(tmp_path, 1) == older
    with pytest.raises(InfrastructureError, match=r"step-2-a1 cannot be read: .* with --step"):
        choose_checkpoint(tmp_path, 2)
    with pytest.raises(DataError, match="has no checkpoint of step 3; choose one of 1"):
        choose_checkpoint(tmp_path, 3)


# ---------------------------------------------------------------------- shards


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"intermediate_size": 64}, r".*[Ss]ize mismatch"),
        ({"num_hidden_layers": 1, "layer_types": None}, r"its policy\.model\.model\.layers\.1\.\S+ is not in"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(finished, tmp_path, changes, problem):
    """Of other sizes, or of fewer layers, which would all be read."""
    ref, _ = finished
    config = json.loads((ref.path / MODEL / "config.json").read_text())
    (ref.path / MODEL / "config.json").write_text(json.dumps(config | changes))
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(ref.path / MODEL)).save_pretrained(tmp_path / "other")
    with pytest.raises(JobError, match=rf"^spec\.checkpoint\.resume: step-1-a1 does not match this job \({problem}"):
        alone(make_spec(), restore, str(tmp_path / "other"), "sft", ref)


def test_a_checkpoint_without_reference_is_refused_where_one_is_needed(finished, tmp_path):
    ref, _ = finished
    with pytest.raises(JobError, match=r"restore the model, algorithm\.advantage, algorithm\.kl"):
        alone(make_spec(), restore, str(tmp_path / "policy"), "rl", ref)
    alone(make_spec(algorithm={"preset": "dapo"}), restore, str(tmp_path / "policy"), "rl", ref)


def restore(worker, folder, stage, ref):
    worker.load(folder)
    worker.begin_stage(stage)
    worker.restore(str(ref.path / RANKS))


def test_a_folder_that_is_not_there_is_a_storage_failure(tmp_path):
    folder = write_model(tmp_path)
    with pytest.raises(InfrastructureError, match=r"the checkpoint's storage failed: .*gone/\.metadata is missing"):
        alone(make_spec(), restore_from, folder, str(tmp_path / "gone"))


def restore_from(worker, folder, directory):
    worker.load(folder)
    worker.begin_stage("sft")
    worker.restore(directory)


def test_a_full_disk_is_told_from_other_failures(tmp_path):
    folder = write_model(tmp_path)
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "__0_0.distcp").symlink_to("/dev/full")
    with pytest.raises(StorageFullError, match="no space left"):
        alone(make_spec(), save_into, folder, str(tmp_path / "ranks"))
    (tmp_path / "file").touch()
    with pytest.raises(InfrastructureError, match=r"the checkpoint's storage failed: .*File exists"):
        alone(make_spec(), save_into, folder, str(tmp_path / "file"))


@pytest.mark.parametrize("kib", range(4, 133, 32))
def test_a_volume_that_fills_up_at_any_byte_is_a_full_one(tmp_path, kib):
    """PyTorch's writer of small files says "unexpected pos" then, and no more."""
    folder = write_model(tmp_path)
    with mounted(tmp_path / "small", f"size={kib}k") as volume, pytest.raises(StorageFullError, match="no space left"):
        alone(make_spec(), save_into, folder, str(volume.root))


def save_into(worker, folder, directory):
    worker.load(folder)
    worker.begin_stage("sft")
    worker.begin_save(directory)
    worker.finish_save()
