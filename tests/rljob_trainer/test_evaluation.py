"""`rljob eval`: its numbers by hand, and a model from its folder to a table."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rljob_api.resolve import resolve
from rljob_api.validation import load_rljob
from rljob_trainer.attempt.model_folder import prepare_model_folder
from rljob_trainer.data.prompts import load_prompts
from rljob_trainer.data.tokenizer import make_tokenizer
from rljob_trainer.evaluation.passing import pass_at, summary, table
from tests.rljob_trainer.cli_support import rljob
from tests.rljob_trainer.run_support import write_job


def test_pass_at_k_counts_the_draws_without_a_pass() -> None:
    assert pass_at(2, 4, 1) == pytest.approx(1 - 3 / 6)  # of 6 pairs, 3 lack the sample that passed
    assert pass_at(1, 8, 3) == pytest.approx(3 / 8)
    assert pass_at(3, 4, 2) == 1.0  # every triple has one of the two
    assert pass_at(4, 4, 0) == 0.0
    with pytest.raises(ValueError, match="at least 5"):
        pass_at(5, 4, 1)


def test_numbers_are_means_over_prompts() -> None:
    found = summary([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.5, 0.0]], [1, 2], passing=1.0)
    assert found == pytest.approx({"mean@4": (0.25 + 0.625) / 2, "pass@1": (0.25 + 0.5) / 2,
                                   "pass@2": (0.5 + 5 / 6) / 2})  # fmt: skip
    assert table({"gsm8k": (2, found)}).splitlines()[1].split() == ["gsm8k", "2", "0.4375", "0.3750", "0.6667"]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A job on 8 words to reverse, and a model that knows them by heart."""
    folder = tmp_path_factory.mktemp("evaluation")
    words = {"train": ["synthetic://reverse-text?rows=8&maxLength=4"]}
    job = write_job(folder, data=words, rollout={"validation": {"samplesPerPrompt": 4, "temperature": 1.0}})
    spec = resolve(load_rljob(job).spec)
    tokenizer = make_tokenizer(spec, folder)
    prepare_model_folder(spec, folder, folder / "model", tokenizer)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder / "model"))
    tasks = load_prompts(spec.data, tokenizer, folder).all("validation")
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(60):
        for task in tasks:
            answer = [*tokenizer.encode(str(task.ground_truth), add_special_tokens=False), tokenizer.eos_token_id]
            ids = torch.tensor([[*task.token_ids.tolist(), *answer]])
            labels = ids.clone()
            labels[:, : len(task.token_ids)] = -100
            optimizer.zero_grad()
            model(ids, labels=labels).loss.backward()
            optimizer.step()
    model.save_pretrained(folder / "model")
    return job, folder / "model"


def test_a_model_that_learned_the_rows_passes_them(learned: tuple[Path, Path], tmp_path: Path) -> None:
    job, model = learned
    done = rljob("eval", model, job, "--json", "-o", tmp_path / "samples.jsonl", "--k", 1, "--k", 3)
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)
    assert set(numbers["all"]) == {"prompts", "mean@4", "pass@1", "pass@3"}
    assert numbers["all"]["prompts"] == 8
    assert numbers["all"]["pass@3"] > 0.9
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 32
    assert all((each["response"] == each["ground_truth"]) == (each["reward"] == 1) for each in samples)
    assert sum(each["reward"] for each in samples) / 32 == pytest.approx(numbers["all"]["mean@4"])
    assert "8 of 8 prompts scored" in done.stderr


def test_what_cannot_be_evaluated_is_an_error(learned: tuple[Path, Path]) -> None:
    job, model = learned
    assert "needs at least 9 samples" in rljob("eval", model, job, "--k", 9).stderr
    plays = rljob("eval", model, job, "--set", "environment.path=game.py")
    assert "spec.environment: eval samples one answer a prompt" in plays.stderr
    greedy = rljob("eval", model, job, "--set", "rollout.validation.temperature=0")
    assert "samples of one prompt at temperature 0 are equal" in greedy.stderr
    spin = ("algorithm.preset=spin", "rewards.functions=null", "rollout.samplesPerPrompt=1", "data.validation=null")
    unrewarded = rljob("eval", model, job, *(part for each in spin for part in ("--set", each)))
    assert "spec.algorithm.preset: preset spin has no rewards to evaluate with" in unrewarded.stderr
    nowhere = rljob("eval", model, job, "-o", job.parent / "none/samples.jsonl")
    assert "none/samples.jsonl cannot be written: No such file" in nowhere.stderr
    assert "starting" not in nowhere.stderr
    assert "remove --step" in rljob("eval", model, job, "--step", 3).stderr
    assert "remove --base" in rljob("eval", model, job, "--base", model).stderr
