"""What is made for a job: whole in `golden_manifests.yaml`, and here what must be so of every job."""

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api.contract import DriverJob
from rljob_api.v1alpha1.pods import FOLDERS, JOB_VOLUMES, SHARED_MEMORY
from rljob_operator import names
from rljob_operator.head import tokens
from rljob_operator.job import Job
from rljob_operator.kube.kinds import POD_GROUPS, Manifest
from rljob_operator.render import (
    CannotMerge,
    Placement,
    cluster_of,
    lasting_children,
    pod_group_of,
    reward_models_of,
    secret_of,
)
from rljob_operator.render.merge import merged
from rljob_operator.render.placement import avoiding
from rljob_operator.render.pods import LOST_NODE_TAINTS
from rljob_trainer.cli.agent import OPEN_METRICS_VARIABLE
from tests.rljob_operator.fabrics import without
from tests.rljob_operator.snapshots import REWARDS, SETTINGS, UID, job

FILE = Path(__file__).with_name("golden_manifests.yaml")

MODEL = REWARDS["models"][0]
STAYS = {"key": LOST_NODE_TAINTS[0], "operator": "Exists"}
WORKER = {
    "metadata": {"labels": {"team": "a", names.JOB_LABEL: "other", names.ROLE_LABEL: "x"}},
    "spec": {
        "nodeSelector": {"pool": "gpu", "zone": "a"},
        "tolerations": [STAYS],
        "containers": [
            {"name": "ray-worker", "env": [{"name": "A", "value": "new"}], "resources": {"limits": {"rdma/ib": "1"}}},
            {"name": "sidecar", "image": "s:1"},
        ],
    },
}
SERVER = {
    "nodeSelector": {"pool": "a"},
    "containers": [{"name": "vllm", "livenessProbe": None, "volumeMounts": [
        {"name": "checkpoints", "mountPath": "/ck"}]}],
}  # fmt: skip
WHOLE: dict[str, Any] = {
    "env": [{"name": "A", "value": "old"}, {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "TORCHDYNAMO_DISABLE", "value": "0"}],
    "envFrom": [{"secretRef": {"name": "more"}}],
    "volumes": [{"name": "data", "emptyDir": {}}],
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    "imagePullSecrets": [{"name": "registry"}],
    "recovery": {"evictionGracePeriod": "90s", "nodeLostAfter": "1m30s"},
    "checkpoint": {"volume": {
        "retain": False, "size": "5Gi", "storageClassName": "fast", "accessMode": "ReadWriteOnce"}},
    "cluster": {"nodes": 3, "gpusPerNode": 8, "priorityClassName": "high", "gpuResource": "amd.com/gpu",
                "worker": {"sharedMemory": "2Gi", "template": WORKER}},
    "rewards": {"models": [
        {**MODEL, "gpusPerReplica": 4, "memory": "200Gi", "arguments": ["--max-model-len", "4096"]},
        {**MODEL, "name": "cpu", "gpusPerReplica": 0, "image": "vllm:9", "template": {"spec": SERVER}},
    ]},
}  # fmt: skip
THEIRS: dict[str, Any] = {"checkpoint": {"volume": {"existingClaim": "mine", "subPath": "runs/1"}, "resume": "never"}}
QUEUED = Placement(
    labels={"queue": "q"}, annotations={"gang": "g"}, tolerations=({"key": "spot", "operator": "Exists"},),
    node_selector={"zone": "b"}, scheduler_name="volcano",
)  # fmt: skip


ELSEWHERE = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1"]}
GPU = {"key": "gpu", "operator": "In", "values": ["a100"]}
NAMED = {"key": "metadata.name", "operator": "In", "values": ["n1", "n2"]}
PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}


def avoids(base: Job, *nodes: str) -> Job:
    return replace(base, status=base.status.model_copy(update=without(*nodes)))


def required(*terms: Any) -> Any:
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}


@pytest.mark.parametrize(("affinity", "expected"), [
    (None, required({"matchExpressions": [ELSEWHERE]})),
    (PREFERRED, PREFERRED | required({"matchExpressions": [ELSEWHERE]})),
    (required({"matchExpressions": [GPU]}), required({"matchExpressions": [GPU, ELSEWHERE]})),
    (required({"matchFields": [NAMED]}), required({"matchFields": [NAMED], "matchExpressions": [ELSEWHERE]})),
    (required({"matchExpressions": [GPU]}, {}), required({"matchExpressions": [GPU, ELSEWHERE]}, {})),
])  # fmt: skip
def test_worker_pods_avoid_nodes_beside_an_affinity_of_their_own(affinity, expected):
    apart = {"podAntiAffinity": {}}
    given = {"affinity": apart | ({"nodeAffinity": affinity} if affinity else {})}
    base = avoids(job(cluster={"nodes": 2, "worker": {"template": {"spec": given}}}), "n1")
    spec = cluster_of(base, "trainer:1", SETTINGS, {})["spec"]
    worker = spec["workerGroupSpecs"][0]["template"]
    assert worker["spec"]["affinity"] == {**apart, "nodeAffinity": expected}
    assert "affinity" not in spec["headGroupSpec"]["template"]["spec"]
    assert avoiding(worker, ["n1"]) == worker, "asked again, it changes nothing"


def made(base: Job, **settings: Any) -> Iterator[Manifest]:
    """Everything."""
    told = SETTINGS.model_copy(update=settings)
    yield from lasting_children(base, told, trains=True)
    yield secret_of(base, SETTINGS.key)
    yield cluster_of(base, "trainer:1", told, {})
    yield from reward_models_of(base, "trainer:1", SETTINGS, {})


def render() -> str:
    """Of a job, of one with all that can be set, the pods of one that has a claim and a queue of its own and avoids
    nodes, and the PodGroups of gangs.
    """
    theirs = cluster_of(
        avoids(job(**THEIRS), "n1", "n2"),
        "trainer:1",
        SETTINGS,
        dict.fromkeys((names.HEAD_GROUP, names.TRAINER_GROUP), QUEUED),
    )
    whole = made(job(**WHOLE), monitoring_namespace="prom")
    gangs = [pod_group_of(job(**WHOLE, gang={"scheduler": each}), SETTINGS) for each in POD_GROUPS]
    found = [each for each in (*made(job()), *whole, theirs, *gangs) if each and each["kind"] != "ConfigMap"]
    return yaml.safe_dump_all(json.loads(json.dumps(found)), sort_keys=True, width=120)  # without YAML's aliases


def test_every_manifest_is_as_in_the_golden_file():
    """If a change is meant: python -m tests.rljob_operator.test_render"""
    assert render() == FILE.read_text()


def cluster(**spec: Any) -> Any:
    return cluster_of(job(**spec), "trainer:1", SETTINGS, {})["spec"]


def templates(**spec: Any) -> list[Any]:
    """Pods of head, workers and a reward model."""
    base, groups = job(**{"rewards": {"models": [MODEL]}, **spec}), cluster(**spec)
    _, server = reward_models_of(base, "trainer:1", SETTINGS, {})
    return [groups["headGroupSpec"]["template"], groups["workerGroupSpecs"][0]["template"], server["spec"]["template"]]


def test_pods_are_restricted_and_carry_no_kubernetes_token():
    for pod in (each["spec"] for each in templates()):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            }  # fmt: skip


def test_only_the_job_s_own_pods_and_the_operator_s_namespace_get_in():
    policy = next(each for each in made(job()) if each["kind"] == "NetworkPolicy")["spec"]
    own = {"podSelector": {"matchLabels": {"rljob.dev/job": "job"}}}
    operator = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "rljob-system"}}}
    ports = [{"protocol": "TCP", "port": 8265}, {"protocol": "TCP", "port": 8900}]
    assert policy["ingress"] == [{"from": [own]}, {"from": [operator], "ports": ports}]


def test_tokens_differ_by_job_and_purpose_and_are_never_those_of_another_key():
    data = secret_of(job(), SETTINGS.key)["data"]
    ray, agent, reward = (base64.b64decode(data[name]).decode() for name in ("auth_token", "agent_token", "reward_key"))
    assert ray == tokens.derive(SETTINGS.key, UID, "auth_token")
    others = (tokens.derive(SETTINGS.key, "another", "auth_token"), tokens.derive(b"x", UID, "auth_token"))
    assert len({ray, agent, reward, *others}) == 5


def test_a_cluster_and_its_pods_name_the_secret_of_the_key_it_was_made_with():
    found = []
    for key in (SETTINGS.key, b"another"):
        ray = cluster_of(job(), "trainer:1", SETTINGS.model_copy(update={"key": key}), {})
        secret = secret_of(job(), key)["metadata"]["name"]
        assert set(re.findall(r"job-auth-[\w-]+", str(ray["spec"]))) == {secret}
        found.append((secret, ray["metadata"]["annotations"][names.KEY_ANNOTATION]))
    assert {len(set(each)) for each in zip(*found, strict=True)} == {2}


def test_the_driver_s_job_is_the_resolved_spec_of_its_generation():
    config = next(each for each in made(job(rewards=REWARDS)) if each["kind"] == "ConfigMap")
    read = DriverJob.model_validate_json(config["data"]["job.json"])
    assert (read.uid, read.generation, read.name, read.base_dir) == (UID, 3, "job", "/checkpoints")
    assert read.spec.ranks == 8
    assert read.reward_models == {"rm": "http://job-rm-rm:8000", "judge": "http://job-rm-judge:8000"}


def test_no_two_reward_models_of_two_jobs_share_a_name():
    parts = [
        *product(("a", "rm", "b"), repeat=1),
        *product(("a", "rm", "b"), repeat=2),
        *product(("a", "rm"), repeat=4),
    ]
    words = ["-".join(each) for each in parts]
    admitted = [word for word in words if not re.search("(^|-)rm-", word)]  # as the rule of RewardModel
    named = [names.reward_model(job, model) for job in words for model in admitted]

    assert {"rm", "a-rm", "a-b"} <= {*admitted}
    assert len({*named}) == len(named)


def test_a_server_gets_its_own_variables_and_the_job_s_key_and_its_clients_get_the_key():
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    base = {"env": [{"name": "A", "value": "1"}], "envFrom": [{"secretRef": {"name": "more"}}]}
    *clients, server = (
        each["spec"]["containers"][0] for each in templates(**base, rewards={"models": [{**MODEL, "env": [token]}]})
    )
    variables = {each["name"]: each for each in server["env"]}
    assert "envFrom" not in server
    assert "A" not in variables
    assert variables["HF_TOKEN"] == token
    key = variables["VLLM_API_KEY"]["valueFrom"]
    assert key["secretKeyRef"]["key"] == "reward_key"
    for client in clients:
        assert {"name": "RLJOB_REWARD_KEY_RM", "valueFrom": key} in client["env"]
        assert client["envFrom"] == base["envFrom"]
    assert not [each for each in server["command"] if "key" in each]


def test_nothing_is_made_for_a_server_elsewhere_but_its_key_in_head_and_workers():
    there = {**MODEL, "url": "https://models.example.com", "key": {"name": "secret", "key": "k"}}
    served = job(rewards={"models": [there, REWARDS["models"][1]]})
    children = {each["kind"]: each for each in reward_models_of(served, "trainer:1", SETTINGS, {})}
    assert {kind: each["metadata"]["name"] for kind, each in children.items()} == {
        "Service": "job-rm-judge", "Deployment": "job-rm-judge"
    }  # fmt: skip
    text = lasting_children(served, SETTINGS, trains=True)[0]["data"]["job.json"]
    assert list(DriverJob.model_validate_json(text).reward_models) == ["judge"]
    spec = cluster_of(served, "trainer:1", SETTINGS, {})["spec"]
    pods = [each["template"]["spec"] for each in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]
    variable = {"name": "RLJOB_REWARD_KEY_RM", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "k"}}}
    assert [variable in pod["containers"][0]["env"] for pod in pods] == [True, True]
    model = children["Deployment"]["spec"]["template"]["spec"]
    assert variable not in model["containers"][0]["env"], "a server has no use for another's key"


def test_the_key_of_a_teachers_server_is_in_head_and_workers():
    server = {"url": "https://models.example.com", "model": "big", "key": {"name": "secret", "key": "k"}}
    spec = cluster_of(job(algorithm={"teacher": {"server": server}}), "trainer:1", SETTINGS, {})["spec"]
    pods = [each["template"]["spec"] for each in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]
    variable = {"name": "RLJOB_TEACHER_KEY", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "k"}}}
    assert [variable in pod["containers"][0]["env"] for pod in pods] == [True, True]


def test_the_agent_s_metrics_are_open_where_the_operator_knows_prometheus():
    assert OPEN_METRICS_VARIABLE in str([*made(job(), monitoring_namespace="prom")])
    assert OPEN_METRICS_VARIABLE not in str([*made(job())])


def test_the_api_keeps_the_names_and_places_of_our_volumes():
    """Its rules have words of their own for them."""
    head, worker, _ = (each["spec"] for each in templates())
    assert [each["name"] for each in head["volumes"]] == [*JOB_VOLUMES]
    assert [each["name"] for each in worker["volumes"]] == [*JOB_VOLUMES, SHARED_MEMORY]
    assert [each["mountPath"] for each in worker["containers"][0]["volumeMounts"]] == [*FOLDERS]


TOLERATIONS = [
    ({"key": LOST_NODE_TAINTS[0], "operator": "Exists", "effect": "NoSchedule"}, 2),
    ({"key": LOST_NODE_TAINTS[0], "operator": "Exists"}, 1),
    ({"operator": "Exists"}, 2),
]


@pytest.mark.parametrize(("given", "ours"), TOLERATIONS)
def test_a_toleration_that_does_not_name_the_taint_says_nothing_of_lost_nodes(given, ours):
    pod = templates(cluster={"head": {"template": {"spec": {"tolerations": [given]}}}})[0]["spec"]
    assert (len(pod["tolerations"]), pod["tolerations"][-1]) == (1 + ours, given), "the first that matches counts"


@pytest.mark.parametrize(("trains", "available"), [(True, 4), (False, 0)])  # four workers and a head
def test_one_pod_of_a_job_that_trains_may_be_evicted_and_all_of_another(trains, available):
    children = lasting_children(job(cluster={"nodes": 4}), SETTINGS, trains=trains)
    (budget,) = (each for each in children if each["kind"] == "PodDisruptionBudget")
    assert budget["spec"]["minAvailable"] == available


def test_a_users_template_cannot_hide_a_pod_or_make_it_another_jobs():
    template = {"metadata": {"labels": {"rljob.dev/job": "other", "rljob.dev/role": "x", "team": "a"}}}
    found = templates(
        cluster={"nodes": 2, "gpusPerNode": 4, "head": {"template": template}, "worker": {"template": template}},
        rewards={"models": [{**MODEL, "template": template}]},
    )
    for pod, role in zip(found, names.ROLES, strict=True):
        assert {"rljob.dev/job": "job", "rljob.dev/role": role, "team": "a"}.items() <= pod["metadata"][
            "labels"
        ].items()


def test_however_long_a_template_is_its_deployment_s_annotations_are_short():
    """Kubernetes allows 256 KiB of them."""
    long = job(rewards=REWARDS, env=[{"name": f"A{number}", "value": "x" * 4096} for number in range(128)])
    _, deployment, *_ = reward_models_of(long, "trainer:1", SETTINGS, {})
    assert sum(map(len, deployment["metadata"]["annotations"].values())) < 1000


OURS = {"name": "a", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
MERGES: list[tuple[Any, Any, Any]] = [
    ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
    ({"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}),
    ({"a": 1}, {"a": None}, {}),
    ({"args": ["a"]}, {"args": ["b"]}, {"args": ["b"]}),
    ({"volumes": [OURS]}, {"volumes": [{"name": "c"}]}, {"volumes": [OURS, {"name": "c"}]}),
    (  # another source takes the place of ours
        {"volumes": [OURS]}, {"volumes": [{"name": "a", "hostPath": {"path": "/dev/shm"}, "configMap": None}]},
        {"volumes": [{"name": "a", "hostPath": {"path": "/dev/shm"}}]},
    ),
    (  # the same source is merged
        {"volumes": [OURS]}, {"volumes": [{"name": "a", "emptyDir": {"sizeLimit": "2Gi"}}]},
        {"volumes": [{"name": "a", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}]},
    ),
    (
        {"ports": [{"containerPort": 53, "name": "a"}]},
        {"ports": [{"containerPort": 53, "protocol": "UDP", "name": "u"}, {"containerPort": 53, "name": "t"}]},
        {"ports": [{"containerPort": 53, "name": "t"}, {"containerPort": 53, "protocol": "UDP", "name": "u"}]},
    ),
    (  # the API server reports what they lack
        {"containers": [{"name": "a"}]}, {"containers": [{"image": "i1"}, {"image": "i2"}]},
        {"containers": [{"name": "a"}, {"image": "i1"}, {"image": "i2"}]},
    ),
    (
        {"volumeMounts": [{"mountPath": "/a", "name": "x"}]}, {"volumeMounts": [{"mountPath": "/a", "name": "y"}]},
        {"volumeMounts": [{"mountPath": "/a", "name": "y"}]},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("base", "patch", "expected"), MERGES)
def test_templates_merge_strategically(base, patch, expected):
    assert merged(base, patch) == expected


MINE, SIDE = "spec.cluster.worker.template.spec.containers[1]", "spec.cluster.worker.template.spec.containers[0]"
UNFIT: list[tuple[dict[str, Any], str, str]] = [
    ({"env": "none"}, f"{MINE}.env", "a list"),
    ({"env": ["a"]}, f"{MINE}.env", "a list of objects"),
    ({"resources": []}, f"{MINE}.resources", "an object"),
    ({"env": [{"name": "A", "value": "a"}, {"name": "B"}, {"name": "A"}]}, f"{MINE}.env[2]", f"{MINE}.env[0]"),
    ({"volumeMounts": [{"name": "x", "mountPath": "/s"}, {"name": "y", "mountPath": "/s"}]}, f"{MINE}.volumeMounts[1]",
     "mountPath /s"),
    ({"name": "side", "image": "i2"}, MINE, SIDE),
    ({"volumeMounts": [{"name": "data", "mountPath": "/checkpoints"}]},
     "spec.cluster.worker.template.spec.containers[ray-worker].volumeMounts", "/checkpoints"),
]  # fmt: skip


@pytest.mark.parametrize(("container", "path", "words"), UNFIT)
def test_a_template_of_another_form_or_with_one_entry_twice_is_refused_by_its_path(container, path, words):
    template = {"spec": {"containers": [{"name": "side", "image": "i1"}, {"name": "ray-worker", **container}]}}
    with pytest.raises(CannotMerge) as refused:
        cluster(volumes=[{"name": "data", "emptyDir": {}}], cluster={"worker": {"template": template}})
    assert str(refused.value).startswith((f"{path} ", f"{path}:"))
    assert words in str(refused.value)


def test_so_is_a_port_of_the_head_that_it_has_twice():
    """Without a protocol it is one of TCP."""
    ports = [{"containerPort": 53}, {"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53, "protocol": "TCP"}]
    for given in (ports[:2], ports):
        template = {"spec": {"containers": [{"name": "ray-head", "ports": given}]}}
        if given is ports:
            with pytest.raises(CannotMerge, match=r"ports\[2\] has the same containerPort 53, protocol TCP as .*\[0\]"):
                cluster(cluster={"head": {"template": template}})
        else:
            made_of = templates(cluster={"head": {"template": template}})[0]["spec"]["containers"][0]["ports"]
            assert [each for each in made_of if each["containerPort"] == 53] == given


if __name__ == "__main__":
    FILE.write_text(render())
