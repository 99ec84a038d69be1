"""A run of the example: an agent that knows only the OpenAI API is trained, from the engine's own tokens."""

from pathlib import Path

import pytest

from tests.rljob_api.example_files import EXAMPLES
from tests.rljob_trainer.run_support import machine, trained

SHORT = ("training.steps=2", "training.validateEvery=2", "sft.steps=1", "data.promptsPerStep=4")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_agent_with_the_openai_client_trains_two_steps(tmp_path: Path):
    run = tmp_path / "run"
    with machine() as place:
        sets = [part for each in SHORT for part in ("--set", each)]
        ended = place.rljob("run", EXAMPLES / "openai-agent/rljob.yaml", "--dir", run, *sets)
        shown = place.rljob("samples", run)
    assert ended.code == 0, ended.out
    lines = trained(run)[-2:]
    assert [line["episode/turns"] for line in lines] == [2.0, 2.0]
    for line in lines:
        assert line["episode/failed"] == 0, "an untrained policy's empty answers are answers"
        assert line["rollout/log_prob_diff_mean"] < 1e-3, "recorded ids and log-probabilities are the engine's"
        assert {"episode/changed", "episode/splits"} <= line.keys()
    assert "<|user|>again<|assistant|>" in shown.out
