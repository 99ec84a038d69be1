"""The chart's admission policies on a real API server: what they refuse, and of whom."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
import yaml
from kubernetes.client import ApiException

from e2e.cluster.access import Access
from e2e.cluster.errors import ClusterError
from e2e.cluster.fixtures import new_namespace
from e2e.cluster.helm import Helm
from tests.charts.chart import NAME, of_kind, render
from tests.e2e.jobs import Jobs
from tests.e2e.waiting import eventually
from tests.rljob_operator.snapshots import SPEC

KINDS = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
LISTS = {"secrets": ["hf-token", "rljob-*"], "claims": ["data*", "old-checkpoints"]}


class Guarded(NamedTuple):
    """own: the operator's namespace. jobs: those of another, where all policies hold."""

    cluster: Access
    own: Jobs
    jobs: Jobs
    policies: str

    def as_operator(self, *arguments: str, objects: Any = None) -> str:
        """With every right: what is refused, a policy refuses."""
        user = f"--as=system:serviceaccount:{self.own.namespace}:{NAME}"
        text = yaml.safe_dump(objects) if objects else ""
        return self.cluster.kubectl(f"--namespace={self.jobs.namespace}", user, "--as-group=system:masters", *arguments,
                                    objects=text)  # fmt: skip


@pytest.fixture(scope="module")
def guarded(helm: Helm, cluster: Access) -> Iterator[Guarded]:
    with cluster.client() as client, new_namespace(client) as own, new_namespace(client) as jobs, ExitStack() as end:
        values = {"namespaces": [jobs], "admission": {"jobs": {"enabled": True, **LISTS}}}
        policies = yaml.safe_dump_all(of_kind(render(helm, values, own), *KINDS))
        made = Guarded(cluster, Jobs(client, own), Jobs(client, jobs), policies)
        made.jobs.create("older", **of_worker(hostNetwork=True))
        cluster.kubectl("apply", "--filename=-", objects=policies)
        end.callback(cluster.kubectl, "delete", "--filename=-", objects=policies)
        eventually(lambda: refusal(made.jobs, of_worker(hostPID=True)))
        eventually(lambda: refusal(made.own, {}))
        yield made


def of_worker(**pod: Any) -> dict[str, Any]:
    return {"cluster": {"worker": {"template": {"spec": pod}}}}


def of_head(**container: Any) -> dict[str, Any]:
    return {"cluster": {"head": {"template": {"spec": {"containers": [{"name": "ray-head", **container}]}}}}}


def of_reward_model(**pod: Any) -> dict[str, Any]:
    model = {"name": "rm", "path": "org/rm", "kind": "classifier", "template": {"spec": pod}}
    return {"rewards": {"models": [model]}}


def volume(**source: Any) -> dict[str, Any]:
    return {"name": "v", **source}


def secret(name: str) -> dict[str, Any]:
    return {"name": "A", "valueFrom": {"secretKeyRef": {"name": name, "key": "k"}}}


def claim(name: str) -> dict[str, Any]:
    return volume(persistentVolumeClaim={"claimName": name})


TOKENS = "rljob-a-auth-01234567-89abcdef"

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a service account": (of_worker(serviceAccountName="admin"), "serviceAccountName"),
    "its older field": (of_reward_model(serviceAccount="admin"), "serviceAccountName"),
    "a token": (of_worker(automountServiceAccountToken=True), "automountServiceAccountToken"),
    "the default, which is a token": (of_worker(automountServiceAccountToken=None), "automountServiceAccountToken"),
    "a token in a volume": (
        of_worker(volumes=[volume(projected={"sources": [{"serviceAccountToken": {"path": "t"}}]})]), "volumes",
    ),
    "the node's network": (of_reward_model(hostNetwork=True), "hostNetwork"),
    "the node's processes": (of_worker(hostPID=True), "hostPID"),
    "the node's memory": (of_worker(hostIPC=True), "hostIPC"),
    "the node's ports": (of_head(ports=[{"containerPort": 22, "hostPort": 22}]), "hostPort"),
    "the node's files": (of_worker(volumes=[volume(hostPath={"path": "/"})]), "hostPath"),
    "the node's files for all pods": ({"volumes": [volume(hostPath={"path": "/"})]}, "hostPath"),
    "a driver's volume": ({"volumes": [volume(csi={"driver": "secrets-store.csi.k8s.io"})]}, "volumes"),
    "a copy of a claim": ({"volumes": [volume(ephemeral={"volumeClaimTemplate": {}})]}, "volumes"),
    "a privileged container": (of_head(securityContext={"privileged": True}), "privileged"),
    "a privileged init container": (
        of_worker(initContainers=[{"name": "i", "securityContext": {"privileged": True}}]), "privileged",
    ),
    "capabilities": (of_head(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}), "capabilities"),
    "none of our limits": (of_head(securityContext=None), "securityContext"),
    "a Secret that is not listed": ({"env": [secret("other")]}, "Secrets"),
    "one of envFrom": ({"envFrom": [{"secretRef": {"name": "other"}}]}, "Secrets"),
    "one in a volume": ({"volumes": [volume(secret={"secretName": "other"})]}, "Secrets"),
    "one of a reward model's key": ({"rewards": {"models": [{
        "name": "rm", "path": "org/rm", "kind": "classifier", "url": "https://models.example.com",
        "key": {"name": "other", "key": "k"}}]}}, "Secrets"),
    "one of a reward model's variables": ({"rewards": {"models": [{
        "name": "rm", "path": "org/rm", "kind": "classifier", "env": [secret("other")]}]}}, "Secrets"),
    "one in a container": (of_head(env=[secret("other")]), "Secrets"),
    "one of a container's envFrom": (of_head(envFrom=[{"secretRef": {"name": "other"}}]), "Secrets"),
    "one in a projected volume": (
        {"volumes": [volume(projected={"sources": [{"secret": {"name": "hf-token"}}]})]}, "projected",
    ),
    "another job's tokens": (of_worker(volumes=[volume(secret={"secretName": TOKENS})]), "tokens"),
    "another job's claim": ({"volumes": [claim("data-checkpoints")]}, "existingClaim"),
    "another job's claim as its own": (
        {"checkpoint": {"volume": {"existingClaim": "a-checkpoints"}}}, "existingClaim",
    ),
    "a claim that is not listed": (of_reward_model(volumes=[claim("other")]), "existingClaim"),
}  # fmt: skip

ADMITTED: dict[str, dict[str, Any]] = {
    "no template": {},
    "no token": of_worker(automountServiceAccountToken=False, hostNetwork=False),
    "Secrets that are listed": {"env": [secret("hf-token"), {"name": "B", "value": "b"}], "envFrom": [
        {"secretRef": {"name": "rljob-mine"}}, {"configMapRef": {"name": "any"}}]},
    "a container beside ours": of_worker(containers=[
        {"name": "side", "image": "i", "env": [secret("hf-token")], "securityContext": {"runAsUser": 7}},
        {"name": "ray-worker", "env": None}]),
    "volumes": {"volumes": [claim("data-a"), {"name": "w", "emptyDir": {}}, {"name": "own", "persistentVolumeClaim": {
        "claimName": "job-checkpoints"}}, {"name": "s", "secret": {"secretName": "hf-token"}}]},
    "an older job's claim that is listed": {"checkpoint": {"volume": {"existingClaim": "old-checkpoints"}}},
    "a reward model": of_reward_model(nodeSelector={"gpu": "a"}),
    "a port of a container": of_head(ports=[{"containerPort": 9000}]),
}  # fmt: skip


def refusal(jobs: Jobs, spec: dict[str, Any]) -> str:
    """Why the API server does not create the job; empty if it would."""
    body = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "job"}, "spec": {**SPEC, **spec}}
    named = {"group": "rljob.dev", "version": "v1alpha1", "plural": "rljobs", "namespace": jobs.namespace}
    try:
        jobs._api.create_namespaced_custom_object(**named, body=body, dry_run="All")
    except ApiException as error:
        return str(json.loads(error.body or "")["message"])
    return ""


@pytest.mark.parametrize("case", REFUSED)
def test_a_job_gives_no_more_than_its_pods_need(guarded: Guarded, case: str) -> None:
    spec, word = REFUSED[case]
    told = refusal(guarded.jobs, spec)
    assert word in told
    assert "denied request" in told, "and no error of the policy's own"
    assert "resulted in error" not in told


@pytest.mark.parametrize("case", ADMITTED)
def test_what_jobs_need_is_admitted(guarded: Guarded, case: str) -> None:
    assert refusal(guarded.jobs, ADMITTED[case]) == ""


def test_no_job_lives_beside_the_operators_key(guarded: Guarded) -> None:
    assert "metadata.namespace" in refusal(guarded.own, {})


def test_an_older_job_can_be_suspended_and_let_go_but_not_resumed(guarded: Guarded) -> None:
    jobs = guarded.jobs
    guarded.as_operator("patch", "rljob/older", "--type=merge", '--patch={"metadata":{"finalizers":["rljob.dev/x"]}}')
    jobs.patch("older", suspend=True)
    for change in ({"suspend": False}, {"ttlAfterFinished": "1s"}):
        with pytest.raises(ApiException, match="hostNetwork"):
            jobs.patch("older", **change)
    guarded.as_operator("patch", "rljob/older", "--type=merge", '--patch={"metadata":{"finalizers":null}}')
    jobs.delete("older")
    eventually(lambda: not jobs.exists("older"))


OURS = {"rljob.dev/job": "job", "app.kubernetes.io/managed-by": "rljob-operator"}


def object_of(kind: str, name: str, labels: dict[str, str] | None = None, **content: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "labels": labels or {}}, **content}


def test_the_operator_writes_objects_of_jobs_alone(guarded: Guarded) -> None:
    guarded.jobs.create("mine")
    mine, others = object_of("ConfigMap", "mine", OURS), object_of("ConfigMap", "others")
    guarded.cluster.kubectl(
        "create", f"--namespace={guarded.jobs.namespace}", "--filename=-", objects=yaml.safe_dump(others)
    )
    guarded.as_operator("create", "--filename=-", objects=mine)
    guarded.as_operator("patch", "configmap/mine", "--patch", '{"data":{"a":"b"}}')
    tokens = object_of("Secret", "mine-auth-01234567-89abcdef", OURS)
    guarded.as_operator("create", "--filename=-", objects=tokens)
    guarded.as_operator("patch", "rljob/mine", "--type=merge", '--patch={"metadata":{"annotations":{"a":"b"}}}')
    guarded.as_operator(
        "patch", "rljob/mine", "--subresource=status", "--type=merge", '--patch={"status":{"phase":"Pending"}}'
    )

    adopt = '{"metadata":{"labels":{"rljob.dev/job":"mine"}}}'
    account_token = object_of("Secret", "mine-auth-01234567-00000000", OURS, type="kubernetes.io/service-account-token")
    account_token["metadata"]["annotations"] = {"kubernetes.io/service-account.name": "default"}
    for command, made, word in (
        (("patch", "rljob/mine", "--type=merge", '--patch={"spec":{"suspend":true}}'), None, "spec"),
        (("delete", "configmap/others"), None, "label"),
        (("patch", "configmap/others", f"--patch={adopt}"), None, "label"),
        (("patch", "configmap/mine", '--patch={"metadata":{"labels":null}}'), None, "label"),
        (("create", "--filename=-"), object_of("ConfigMap", "new"), "label"),
        (("create", "--filename=-"), object_of("Secret", "new"), "key"),
        (("create", "--filename=-"), object_of("Secret", "rljob-operator-key"), "key"),
        (("create", "--filename=-"), object_of("Secret", "any", OURS), "key"),
        (("create", "--filename=-"), account_token, "key"),
        (("create", "deployment", "new", "--image=i"), None, "label"),
    ):
        with pytest.raises(ClusterError) as error:
            guarded.as_operator(*command, objects=made)
        assert "denied request" in str(error.value), command
        assert word in str(error.value).partition("denied request")[2], command
    guarded.as_operator("delete", "configmap/mine")
