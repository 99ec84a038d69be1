"""SmolLM2 from the package registry: the folder is an ordinary model, and the example trains on it."""

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.learning.arms import LORA
from rljob_trainer.errors import DataError
from rljob_trainer.pretrained import catalogue
from rljob_trainer.pretrained.fetch import fetch
from tests.rljob_api.example_files import EXAMPLES
from tests.rljob_trainer.run_support import exit_record, finish, machine, steps, trained

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NAME = "smollm2-135m"
EXAMPLE = EXAMPLES / "smollm2/rljob.yaml"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fetched") / "model"
    fetch(NAME, folder, None, lambda _: None)
    return folder


def test_the_folder_is_a_model_that_transformers_loads_and_that_answers(model: Path):
    tokenizer = AutoTokenizer.from_pretrained(model)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    assert sum(parameter.numel() for parameter in loaded.parameters()) == catalogue.MODELS[NAME].parameters
    prompt = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    made = loaded.generate(**inputs, do_sample=False, max_new_tokens=20)
    assert "Paris" in tokenizer.decode(made[0, inputs["input_ids"].shape[1] :])
    assert [path.name for path in model.parent.iterdir()] == ["model"], "nothing else is left"


def test_fetching_again_changes_nothing_and_a_damaged_folder_is_refused(model: Path, tmp_path: Path):
    before = {path: path.stat().st_mtime_ns for path in model.iterdir()}
    told: list[str] = []
    fetch(NAME, model, None, told.append)
    assert told == [f"{model} is SmolLM2-135M-Instruct already"]
    assert {path: path.stat().st_mtime_ns for path in model.iterdir()} == before

    damaged = tmp_path / "model"
    shutil.copytree(model, damaged)
    with (damaged / "model.safetensors").open("r+b") as file:
        file.seek(-100, 2)
        file.write(b"damaged")
    with pytest.raises(DataError, match=r"exists and is not SmolLM2-135M-Instruct: its weights have the digest"):
        fetch(NAME, damaged, None, told.append)


@pytest.mark.parametrize("more", [(), LORA], ids=["full", "lora"])
def test_the_example_trains_two_steps(model: Path, tmp_path: Path, more: tuple[str, ...]):
    pytest.importorskip("reasoning_gym", reason="make setup installs it if a C compiler is present")
    run = tmp_path / "run"
    short = (
        f"model.path={model}", "training.steps=2", "training.validateEvery=0", "training.validateBeforeTraining=false",
        "data.promptsPerStep=4", "rollout.samplesPerPrompt=4", "data.maxResponseTokens=24", "checkpoint.everySteps=0",
        *more,
    )  # fmt: skip
    with machine() as place:
        process = place.start_run(EXAMPLE, "--dir", run, *(part for each in short for part in ("--set", each)))
        ended = finish(process, 600)
    assert ended.code == 0, ended.out
    assert exit_record(run)["code"] == 0
    assert steps(run) == [1, 2]
    for line in trained(run):
        assert line["actor/grad_norm"] > 0 or line["reward/std"] == 0
        assert line["sync/probe_mean"] < 1e-3, "the engine computes what the trainer computes"
