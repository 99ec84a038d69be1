"""A classifier and a judge, each a Deployment of vLLM: the job waits for them, and outlives their servers."""

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import Layout
from e2e.nodes import containers, kuberay
from e2e.nodes.images import TRAINER
from e2e.scenarios.conftest import Report, own_cluster_only
from e2e.scenarios.job import Job
from e2e.scenarios.policy import guarded, with_token
from rljob_operator.names import SERVER_CONTAINER
from tests.rljob_trainer.reward_models_support import ENVIRONMENT, SERVED, classifier, judge

pytestmark = pytest.mark.timeout(2400)

PATTERN, TOKENS = r"(\d)", 4

POD = {"cpu": "100m", "memory": "4Gi"}

ENVIRONMENTS = [{"name": name, "value": value} for name, value in ENVIRONMENT.items()]

CLASSIFIER: dict[str, Any] = {
    "name": "rm", "path": "/models/rm", "kind": "classifier", "weight": 0.01, "env": ENVIRONMENTS, **SERVED, **POD,
}  # fmt: skip
JUDGE: dict[str, Any] = {
    "name": "judge", "path": "/models/judge", "kind": "generative", "weight": 0.01, "maxTokens": TOKENS,
    "promptTemplate": "is {response} the reverse of {prompt}?", "scorePattern": PATTERN, "env": ENVIRONMENTS,
    **SERVED, **POD,
}  # fmt: skip


START_SECONDS = 10.0
"""vLLM takes longer to start."""

USUAL = 3.0
"""So many times as long as any step before is the one that waits for vLLM to start again."""

ASKED_AGAIN = r"""grep -rhs reward_model_retried /tmp/ray | grep -cE 'model\W*rm\b' || true"""
"""Counts that event of the trainer's in Ray's logs: the process that scores is none of the driver's log."""


def test_a_job_waits_for_its_reward_models_and_outlives_their_servers(
    layout: Layout, job: Job, tmp_path: Path, report: Report
) -> None:
    """One is killed, the other is restarted by a person; the job waits for either, and is scored by both."""
    classifier(tmp_path / "rm")
    judge(tmp_path / "judge", PATTERN, TOKENS)
    for name in ("rm", "judge"):
        job.kubectl("create", "configmap", name, f"--from-file={tmp_path / name}")

    job.apply(
        rewards={"models": [CLASSIFIER, JUDGE]},
        volumes=[{"name": name, "configMap": {"name": name}} for name in ("rm", "judge")],
        volumeMounts=[{"name": name, "mountPath": f"/models/{name}"} for name in ("rm", "judge")],
        training={"steps": 40},
    )
    job.eventually(lambda: job.holds("ClusterReady"), "Ray cluster")
    waiting = job.conditions["RewardModelsReady"]
    assert (waiting["status"], waiting["reason"]) == ("False", "ServersNotReady")
    assert job.status["attempt"] == 0, "a driver would only wait"

    job.trains()
    pods = {each for role in ("head", "worker") for each in job.pods(role)}
    (server,) = servers(job, "rm")
    models = {f"pod/{each['metadata']['name']}" for model in ("rm", "judge") for each in servers(job, model)}
    assert guarded(job) == pods | models, "one policy guards all of the job's"
    assert with_token(job, pods | models) == []
    (container,) = containers.running([server], SERVER_CONTAINER)
    asked = asked_again(job)
    lost_at = time.time()
    containers.kill(layout.folder, container)
    job.eventually(lambda: not job.holds("RewardModelsReady"), "lost server in the conditions")
    job.eventually(lambda: "ServersNotReady" in job.events(), "event of the lost server")
    job.trains(beyond=job.step + 2)
    job.eventually(lambda: job.holds("RewardModelsReady"), "another server")
    assert asked_again(job) > asked
    usual = longest_pause([line for line in scores(job) if line["time"] < lost_at], 0.0)[0]
    pause, seconds = longest_pause(scores(job), lost_at)
    assert pause > max(START_SECONDS, USUAL * usual), "no step without its scores"
    report(seconds)

    (before,) = servers(job, "judge")
    job.kubectl("rollout", "restart", f"deployment/{job.name}-rm-judge")
    job.kubectl("rollout", "status", f"deployment/{job.name}-rm-judge", "--timeout=300s")
    job.eventually(lambda: before["metadata"]["uid"] not in uids(servers(job, "judge")), "end of the older judge")
    job.trains(beyond=job.step + 2)
    assert pods == {each for role in ("head", "worker") for each in job.pods(role)}
    assert all(line["reward/rm"] != 0 and 0 <= line["reward/judge"] <= 9 for line in scores(job)), "each has its scores"

    status = job.succeeds()
    assert (status["restarts"], status["attempt"]) == (0, 1)
    job.eventually(lambda: not job.kubectl("get", "deployments", "--output=name"), "end of the servers")


def asked_again(job: Job) -> int:
    """How often the model was asked once more."""
    return sum(int(job.run_in(role, "sh", "-c", ASKED_AGAIN)) for role in ("head", "worker"))


def servers(job: Job, model: str) -> list[dict[str, Any]]:
    """Pods of a reward model."""
    selector = f"--selector=rljob.dev/job={job.name},rljob.dev/reward-model={model}"
    found: list[dict[str, Any]] = json.loads(job.kubectl("get", "pods", selector, "--output=json"))["items"]
    return found


def uids(pods: list[dict[str, Any]]) -> set[str]:
    return {each["metadata"]["uid"] for each in pods}


def scores(job: Job) -> list[dict[str, Any]]:
    """Of each RL step its line."""
    return [line for _, line in job.lines() if line["stage"] == "rl"]


def longest_pause(lines: list[dict[str, Any]], since: float) -> tuple[float, float]:
    """Seconds without a step after that Unix time, and from it to the step that ended them."""
    ends = sorted(float(line["time"]) for line in lines)
    return max((after - before, after - since) for before, after in pairwise(ends) if after > since)


PRIVILEGED = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "privileged"},
    "spec": {"containers": [{"name": "any", "image": TRAINER, "securityContext": {"privileged": True}}]},
}


@own_cluster_only("labels a namespace")
def test_reward_models_and_trainers_are_in_a_restricted_namespace(job: Job, tmp_path: Path) -> None:
    """As the operators are. No job is in theirs, where the key is."""
    job.kubectl("label", "namespace", job.namespace, *(f"{name}={value}" for name, value in kuberay.RESTRICTED.items()))
    classifier(tmp_path / "rm")
    job.kubectl("create", "configmap", "rm", f"--from-file={tmp_path / 'rm'}")
    job.apply(
        rewards={"models": [CLASSIFIER]},
        volumes=[{"name": "rm", "configMap": {"name": "rm"}}],
        volumeMounts=[{"name": "rm", "mountPath": "/models/rm"}],
    )
    job.trains()

    namespace = json.loads(job.kubectl("get", "namespace", job.namespace, "--output=json"))
    assert namespace["metadata"]["labels"].items() >= kuberay.RESTRICTED.items()
    with pytest.raises(ClusterError, match=r'Forbidden.* violates PodSecurity "restricted:.*privileged'):
        job.kubectl("create", "--dry-run=server", "--filename=-", objects=json.dumps(PRIVILEGED))
    own = [f"--selector=rljob.dev/{label}" for label in ("role=head", "role=worker", "reward-model=rm")]
    for chosen in own:
        assert job.kubectl("get", "pods", chosen, "--output=name"), chosen
    job.succeeds()
