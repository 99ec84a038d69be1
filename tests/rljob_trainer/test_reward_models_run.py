"""`rljob run` with a real classifier, served by the real vLLM: what is logged is what transformers computes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rljob_trainer.reward_models_support import ENVIRONMENT, SERVED, classifier
from tests.rljob_trainer.run_support import Machine, finish, machine, trained, write_job

pytestmark = pytest.mark.timeout(900)  # vLLM imports itself three times


@pytest.fixture
def place() -> Iterator[Machine]:
    with machine() as made:
        yield made


def test_two_steps_with_a_classifier_that_the_run_serves_itself(place: Machine, tmp_path: Path):
    logit = classifier(tmp_path / "rm")
    run = tmp_path / "run"
    model = {"name": "rm", "path": "rm", "kind": "classifier", "weight": 0.5, **SERVED}
    job = write_job(
        tmp_path,
        data={"validation": ["synthetic://reverse-text?rows=8&maxLength=6&split=validation"]},
        rewards={"functions": [{"name": "similarity", "builtin": "similarity", "weight": 0}], "models": [model]},
        training={"steps": 2, "validateEvery": 1},
        env=[{"name": name, "value": value} for name, value in ENVIRONMENT.items()],
    )
    ended = finish(place.start_run(job, "--dir", run), 800)

    assert ended.code == 0, ended.out
    assert f"waiting for reward model rm (its output is in {run}/logs/reward-model-rm.log)" in ended.out
    lines = trained(run)
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert line["reward/mean"] == pytest.approx(0.5 * line["reward/rm"], rel=1e-4)
        assert line["reward/std"] > 0.01, "the samples score differently"
    samples = [json.loads(text) for text in (run / "samples" / "a1.jsonl").read_text().splitlines()]
    assert [sample["step"] for sample in samples] == [0] * 8 + [1] * 8 + [2] * 8
    for sample in samples:
        said = [{"role": "user", "content": sample["prompt"]}, {"role": "assistant", "content": sample["response"]}]
        assert sample["reward"] == pytest.approx(0.5 * logit(said), abs=1e-3)
    last = [sample["reward"] for sample in samples[-8:]]
    assert lines[-1]["validation/reward"] == pytest.approx(sum(last) / 8, rel=1e-4)
