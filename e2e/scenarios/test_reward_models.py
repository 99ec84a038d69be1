"""A classifier and a judge, each a Deployment of vLLM: the job waits for them, and outlives their pods."""

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.access import Access
from e2e.nodes import kuberay, release
from e2e.scenarios.conftest import Report, own_cluster_only
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


START_SECONDS = 10.0
"""vLLM takes longer to start."""

ASKED_AGAIN = "grep -rls reward_model_asked_again /tmp/ray || true"
"""Files of Ray's logs with that event of the trainer's: the process that scores is none of the driver's log."""

ENVIRONMENTS = [{"name": name, "value": value} for name, value in ENVIRONMENT.items()]


def test_a_job_waits_for_its_reward_models_and_outlives_their_pods(job: Job, tmp_path: Path, report: Report) -> None:
    classifier(tmp_path / "rm")
    judge(tmp_path / "judge", PATTERN, TOKENS)
    for name in ("rm", "judge"):
        job.kubectl("create", "configmap", name, f"--from-file={tmp_path / name}")

    job.apply(
        rewards={"models": [CLASSIFIER, JUDGE]},
        volumes=[{"name": name, "configMap": {"name": name}} for name in ("rm", "judge")],
        volumeMounts=[{"name": name, "mountPath": f"/models/{name}"} for name in ("rm", "judge")],
        env=ENVIRONMENTS,
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
    lost_at = time.time()
    job.kubectl("delete", lost, "--force", "--grace-period=0")
    job.eventually(lambda: not job.holds("RewardModelsReady"), "lost server in the conditions")
    job.eventually(lambda: "ServersNotReady" in job.events(), "event of the lost server")
    job.trains(beyond=job.step + 2)
    job.eventually(lambda: job.holds("RewardModelsReady"), "another server")
    assert pods == {each for role in ("head", "worker") for each in job.pods(role)}
    scored = [line for _, line in job.lines() if line["stage"] == "rl"]
    assert all(line["reward/rm"] != 0 and 0 <= line["reward/judge"] <= 9 for line in scored), "each step has its scores"
    assert any(job.run_in(role, "sh", "-c", ASKED_AGAIN) for role in ("head", "worker"))
    pause, seconds = longest_pause(scored, lost_at)
    assert pause > START_SECONDS, "no step without its scores"
    report(seconds)

    status = job.succeeds()
    assert (status["restarts"], status["attempt"]) == (0, 1)
    assert job.kubectl("get", "deployments", "--output=name") == ""


def longest_pause(lines: list[dict[str, Any]], since: float) -> tuple[float, float]:
    """Seconds without a step after that Unix time, and from it to the step that ended them."""
    ends = sorted(float(line["time"]) for line in lines)
    return max((after - before, after - since) for before, after in pairwise(ends) if after > since)


@pytest.fixture
def beside_operators(cluster: Access) -> Iterator[Job]:
    """A job in the namespace of both operators; it leaves nothing there."""
    job = Job(cluster, release.NAMESPACE)
    yield job
    for kinds in ("rljob", "persistentvolumeclaim"):
        job.kubectl("delete", kinds, "--all")
    job.kubectl("delete", "configmap", "rm", "--ignore-not-found")


@own_cluster_only("trains in the operators' namespace")
def test_operators_reward_models_and_trainers_are_in_one_restricted_namespace(
    beside_operators: Job, tmp_path: Path
) -> None:
    job = beside_operators
    classifier(tmp_path / "rm")
    job.kubectl("create", "configmap", "rm", f"--from-file={tmp_path / 'rm'}")
    job.apply(
        rewards={"models": [CLASSIFIER]},
        volumes=[{"name": "rm", "configMap": {"name": "rm"}}],
        volumeMounts=[{"name": "rm", "mountPath": "/models/rm"}],
        env=ENVIRONMENTS,
    )
    job.trains()

    namespace = json.loads(job.kubectl("get", "namespace", job.namespace, "--output=json"))
    assert namespace["metadata"]["labels"].items() >= kuberay.RESTRICTED.items()
    own = [f"--selector=rljob.dev/{label}" for label in ("role=head", "role=worker", "reward-model=rm")]
    for chosen in (kuberay.PODS, release.PODS, *([each] for each in own)):
        assert job.kubectl("get", "pods", *chosen, "--output=name"), chosen
    job.succeeds()
