"""The example calculator-tool: it trains with the built-in tool, and SmolLM2 calls it after the supervised start."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from rljob_api.validation import load_rljob
from rljob_trainer.pretrained.fetch import fetch
from tests.rljob_api.example_files import EXAMPLES
from tests.rljob_trainer.chat_templates import CHATML, tokenizer_of
from tests.rljob_trainer.run_support import exit_record, finish, machine, trained

EXAMPLE = EXAMPLES / "calculator-tool/rljob.yaml"


def tiny(folder: Path) -> Path:
    """A model without training; its tokens are bytes."""
    tokenizer = tokenizer_of(CHATML, "<|im_end|>")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, eos_token_id=tokenizer.eos_token_id, max_position_embeddings=2048,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def train(run: Path, *settings: str) -> list[dict[str, float]]:
    """Two steps of the example after a supervised one, with its metrics."""
    short = [
        "training.steps=2",
        "sft.steps=1",
        "sft.batchSize=4",
        "data.promptsPerStep=4",
        "rollout.samplesPerPrompt=4",
    ]
    short += ["training.validateEvery=0", "training.validateBeforeTraining=false", "checkpoint.everySteps=0", *settings]
    with machine() as place:
        process = place.start_run(EXAMPLE, "--dir", run, *(part for each in short for part in ("--set", each)))
        ended = finish(process, 600)
    assert ended.code == 0, ended.out
    assert exit_record(run)["code"] == 0
    return [line for line in trained(run) if "episode/turns" in line]


@pytest.mark.slow
def test_a_tiny_model_trains_two_steps_of_the_example(tmp_path: Path):
    """It calls nothing, so its episodes have one turn."""
    lines = train(
        tmp_path / "run", f"model.path={tiny(tmp_path / 'model')}", "data.maxPromptTokens=800",
        "environment.maxEpisodeTokens=1000", "data.maxResponseTokens=8",
    )  # fmt: skip
    assert [line["episode/turns"] for line in lines] == [1.0, 1.0]
    assert all(line["episode/tool_calls"] == 0 and line["sync/probe_mean"] < 1e-3 for line in lines)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_smollm2_calls_the_tool_after_the_supervised_start(tmp_path: Path):
    model = tmp_path / "model"
    fetch("smollm2-135m", model, None, lambda _: None)
    template = load_rljob(EXAMPLE, []).spec.model.chat_template
    assert template is not None
    own = AutoTokenizer.from_pretrained(model)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    rendered = [
        own.apply_chat_template(messages, chat_template=each, tokenize=False, add_generation_prompt=True)
        for each in (None, template)
    ]
    assert rendered[0] == rendered[1], "without tools, the example's template is the model's own"
    calling = 'sft.data=["synthetic://arithmetic?rows=200&seed=1&minDigits=2&calls=1"]'  # all made-up responses call
    few = ["sft.steps=6", "sft.batchSize=8", "data.promptsPerStep=2", "rollout.samplesPerPrompt=2"]
    lines = train(tmp_path / "run", f"model.path={model}", *few, calling)
    assert sum(line["episode/tool_calls"] for line in lines) > 0
    assert all(line["sync/probe_mean"] < 1e-3 for line in lines)
