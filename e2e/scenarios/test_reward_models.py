"""A classifier and a judge, each a Deployment of vLLM: the job waits for them, and outlives their pods."""

from pathlib import Path
from typing import Any

import pytest

from e2e.scenarios.job import LIST_TOKENS, Job
from tests.rljob_trainer.reward_models_support import ENVIRONMENT, SERVED, classifier, judge

pytestmark = pytest.mark.timeout(2400)

PATTERN, TOKENS = r"(\d)", 4

POD = {"cpu": "100m", "memory": "4Gi"}

CLASSIFIER: dict[str, Any] = {"name": "rm", "path": "/models/rm", "kind": "classifier", "weight": 0.01, **SERVED, **POD}
JUDGE: dict[str, Any] = {
    "name": "judge", "path": "/models/judge", "kind": "generative", "weight": 0.01, "maxTokens": TOKENS,
    "promptTemplate": "is {response} the reverse of {prompt}?", "scorePattern": PATTERN, **SERVED, **POD,
}  # fmt: skip


def test_a_job_waits_for_its_reward_models_and_outlives_their_pods(job: Job, tmp_path: Path) -> None:
    classifier(tmp_path / "rm")
    judge(tmp_path / "judge", PATTERN, TOKENS)
    for name in ("rm", "judge"):
        job.kubectl("create", "configmap", name, f"--from-file={tmp_path / name}")

    job.apply(
        rewards={"models": [CLASSIFIER, JUDGE]},
        volumes=[{"name": name, "configMap": {"name": name}} for name in ("rm", "judge")],
        volumeMounts=[{"name": name, "mountPath": f"/models/{name}"} for name in ("rm", "judge")],
        env=[{"name": name, "value": value} for name, value in ENVIRONMENT.items()],
        training={"steps": 30},
    )
    job.eventually(lambda: job.holds("ClusterReady"), "Ray cluster")
    waiting = job.conditions["RewardModelsReady"]
    assert (waiting["status"], waiting["reason"]) == ("False", "ServersNotReady")
    assert job.status["attempt"] == 0, "a driver would only wait"

    job.trains()
    pods = {each for role in ("head", "worker") for each in job.pods(role)}
    (lost,) = job.kubectl("get", "pods", "--selector=rljob.dev/reward-model=rm", "--output=name").split()
    assert "No such file" in job.kubectl("exec", lost, "--", "sh", "-c", LIST_TOKENS)
    job.kubectl("delete", lost, "--force", "--grace-period=0")
    job.eventually(lambda: not job.holds("RewardModelsReady"), "lost server in the conditions")
    job.trains(beyond=job.step + 2)
    assert pods == {each for role in ("head", "worker") for each in job.pods(role)}

    status = job.reaches("Succeeded")
    assert (status["restarts"], status["attempt"]) == (0, 1)
    assert job.kubectl("get", "deployments", "--output=name") == ""
