"""A judge and a classifier on the real vLLM: scores as transformers computes them, and answers that have none."""

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from rljob_api.v1alpha1 import RewardModel, Rewards
from rljob_trainer.errors import RewardError
from rljob_trainer.local.reward_servers import Plan, RewardServers
from rljob_trainer.rewards.models.group import RewardModels
from rljob_trainer.rewards.policy import Response
from rljob_trainer.types import Task
from tests.rljob_trainer.reward_models_support import ENVIRONMENT, SERVED, Messages, classifier, judge
from tests.rljob_trainer.run_support import finish, machine, trained, write_job

TEMPLATE, PATTERN, TOKENS = "is {response} the reverse of {prompt} or of {ground_truth}?", r"(\d)", 4
JUDGE: dict[str, Any] = {
    "name": "judge", "path": "judge", "kind": "generative", "promptTemplate": TEMPLATE, "scorePattern": PATTERN,
    "maxTokens": TOKENS, **SERVED,
}  # fmt: skip
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # vLLM imports itself four times
TOLERANCE = 1e-2
"""Scores go from -200 to 200, and vLLM sums float32 in an order of its own: 1e-3 was seen."""

CLASSIFIER: dict[str, Any] = {"name": "rm", "path": "rm", "kind": "classifier", **SERVED}


@dataclass(frozen=True)
class Served:
    """urls: of both servers. judged: transformers' score of a message. logit: of a conversation."""

    urls: dict[str, str]
    judged: Callable[[str], float]
    logit: Callable[[Messages], float]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    judged, logit = judge(folder / "judge", PATTERN, TOKENS), classifier(folder / "rm", broken="z")
    plans = [
        Plan(RewardModel.model_validate(each), f"spec.rewards.models[{i}]", str(folder / each["path"]), ())
        for i, each in enumerate((JUDGE, CLASSIFIER))
    ]
    # short: vLLM's sockets are in it
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp") as temporary, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", temporary)
        with RewardServers(plans, {}, folder, {**os.environ, **ENVIRONMENT}) as servers:
            patch.undo()
            for name, key in servers.keys.items():
                patch.setenv(name, key)
            servers.wait(print, lambda: False)
            assert list(Path(temporary).glob("*/*")), "vLLM's files are where they are looked for"
            yield Served(servers.urls, judged, logit)
        assert list(Path(temporary).iterdir()) == [], "nothing is left"


def task(text: str) -> Task:
    messages = [{"role": "user", "content": text}]
    return Task("0/7/0", messages, np.arange(3, dtype=np.int32), "truth", {}, "test")


def scores(served: Served, text: str, *texts: str, **rewards: Any) -> Any:
    models = RewardModels(Rewards.model_validate({"models": [JUDGE, CLASSIFIER], **rewards}), served.urls)
    try:
        return models.submit(task(text), [Response(each, len(each)) for each in texts]).result(timeout=240)
    finally:
        models.close()


def test_scores_are_those_that_transformers_computes(served: Served):
    texts = ["abc", "cba", "", "hello there", "aaaaaaaaaaaaaaaaaaaaaaaa", "q"]
    found = scores(served, "abc", *texts)

    messages = [TEMPLATE.format(response=text, prompt="abc", ground_truth="truth") for text in texts]
    assert found.components["judge"].tolist() == [served.judged(message) for message in messages]
    asked = {"role": "user", "content": "abc"}
    logits = [served.logit([asked, {"role": "assistant", "content": text}]) for text in texts]
    assert found.components["rm"] == pytest.approx(logits, abs=TOLERANCE)
    assert np.ptp(logits) > 1
    assert found.rewards == pytest.approx(found.components["judge"] + found.components["rm"], abs=TOLERANCE)


def test_a_server_of_the_other_kind_is_told_from_one_that_is_down(served: Served):
    wrong = {"judge": served.urls["judge"], "rm": served.urls["judge"]}
    with pytest.raises(RewardError):
        scores(Served(wrong, served.judged, served.logit), "abc", "abc")


@pytest.mark.parametrize("path", ["/v1/models", "/pooling", "/v1/chat/completions", "/tokenize", "/metrics", "/docs"])
def test_no_path_is_open_to_who_lacks_the_key(served: Served, path: str):
    for url in served.urls.values():
        assert httpx.get(f"{url}{path}", trust_env=False).status_code == 401
        assert httpx.get(f"{url}/health", trust_env=False).status_code == 200


def test_two_steps_with_a_judge_that_runs_already_and_a_classifier_of_the_run(served: Served, tmp_path: Path):
    run, logit = tmp_path / "run", classifier(tmp_path / "rm")
    env = [{"name": name, "value": value} for name, value in ENVIRONMENT.items()]
    job = write_job(
        tmp_path,
        data={"validation": ["synthetic://reverse-text?rows=8&maxLength=6&split=validation"]},
        rewards={
            "functions": [{"name": "similarity", "builtin": "similarity", "weight": 0}],
            "models": [JUDGE, {**CLASSIFIER, "weight": 0.5, "env": env}],
        },
        training={"steps": 2, "validateEvery": 1},
    )
    with machine() as place:
        ended = finish(place.start_run(job, "--dir", run, "--reward-model", f"judge={served.urls['judge']}"), 600)

    assert ended.code == 0, ended.out
    assert f"{run}/logs/reward-model-rm.log" in ended.out
    assert "waiting for reward model judge" not in ended.out
    assert not (run / "logs" / "reward-model-judge.log").exists()
    samples = [json.loads(text) for text in (run / "samples" / "a1.jsonl").read_text().splitlines()]
    assert [sample["step"] for sample in samples] == [0] * 8 + [1] * 8 + [2] * 8
    for each in samples:
        message = TEMPLATE.format(response=each["response"], prompt=each["prompt"], ground_truth=each["groundTruth"])
        said = [{"role": "user", "content": each["prompt"]}, {"role": "assistant", "content": each["response"]}]
        assert each["reward"] == pytest.approx(served.judged(message) + 0.5 * logit(said), abs=TOLERANCE)
    assert len({each["reward"] for each in samples}) > 1
    lines = trained(run)
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[-1]["validation/reward"] == pytest.approx(np.mean([each["reward"] for each in samples[-8:]]), abs=1e-3)
    for line in lines:
        assert line["reward/mean"] == pytest.approx(line["reward/judge"] + 0.5 * line["reward/rm"], abs=1e-3)
        assert line["reward/std"] > 0.01, "the samples score differently"


@pytest.mark.parametrize(
    ("text", "words"),  # NaN comes last: vLLM may give it to the next text too, whose cache is where that one's was
    [("a" * 400, "reward (rm|judge) rejected it with 400: .*256"), ("abzc", "reward rm gave nan as score")],
)
def test_what_has_no_score_is_named_with_its_sample(served: Served, text: str, words: str):
    with pytest.raises(RewardError, match=f"(?s){words}.*for prompt 0/7/0, sample 0: '{text[:4]}"):
        scores(served, "abc", text)
    dropped = scores(served, "abc", text, onError="drop_group")
    assert np.isnan(dropped.rewards).all()
    assert re.search(f"(?s){words}", dropped.error)
