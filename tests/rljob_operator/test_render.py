"""What is made for a job."""

import base64
import json
import re
from typing import Any

import pytest

from rljob_api import parse_duration
from rljob_api.contract import DriverJob
from rljob_api.v1alpha1.pods import FOLDERS, JOB_VOLUMES, SHARED_MEMORY
from rljob_operator import names
from rljob_operator.head import tokens
from rljob_operator.render import CannotMerge, Placement, cluster_of, lasting_children, secret_of
from rljob_operator.render.merge import merged
from rljob_operator.render.placement import Placement as PlacementClass
from rljob_operator.render.pods import LOST_NODE_TAINTS
from rljob_trainer.cli.agent import OPEN_METRICS_VARIABLE
from tests.rljob_operator.snapshots import SETTINGS, UID, job


def children(**spec: Any) -> dict[str, Any]:
    return {each["kind"]: each for each in lasting_children(job(**spec), SETTINGS, trains=True)}


def cluster(placement: Placement | None = None, **spec: Any) -> Any:
    return cluster_of(job(**spec), "trainer:1", SETTINGS, placement or Placement())["spec"]


def worker(**spec: Any) -> Any:
    return cluster(**spec)["workerGroupSpecs"][0]["template"]["spec"]


def head(**spec: Any) -> Any:
    return cluster(**spec)["headGroupSpec"]["template"]["spec"]


def test_the_driver_s_job_is_the_resolved_spec_of_its_generation():
    text = children()["ConfigMap"]["data"]["job.json"]
    read = DriverJob.model_validate(json.loads(text))

    assert (read.uid, read.generation, read.name) == (UID, 3, "job")
    assert read.spec.ranks == 8
    assert read.base_dir == "/checkpoints"


def test_tokens_differ_by_job_and_purpose_and_are_never_those_of_another_key():
    data = secret_of(job(), SETTINGS.key)["data"]
    ray, agent = (base64.b64decode(data[name]).decode() for name in ("auth_token", "agent_token"))

    assert ray == tokens.derive(SETTINGS.key, UID, "auth_token")
    assert (
        len({ray, agent, tokens.derive(SETTINGS.key, "another", "auth_token"), tokens.derive(b"x", UID, "auth_token")})
        == 4
    )


def test_a_cluster_and_its_pods_name_the_secret_of_the_key_it_was_made_with():
    found = []
    for key in (SETTINGS.key, b"another"):
        settings = SETTINGS.model_copy(update={"key": key})
        secret = secret_of(job(), key)["metadata"]["name"]
        made = cluster_of(job(), "trainer:1", settings, Placement())
        groups = (made["spec"]["headGroupSpec"], made["spec"]["workerGroupSpecs"][0])
        mounted = {
            each["secret"]["secretName"]
            for group in groups for each in group["template"]["spec"]["volumes"] if "secret" in each
        }  # fmt: skip
        assert {made["spec"]["authOptions"]["secretName"], *mounted} == {secret}
        found.append((secret, made["metadata"]["annotations"][names.KEY_ANNOTATION]))
    assert {len(set(each)) for each in zip(*found, strict=True)} == {2}


def test_a_retained_claim_has_no_owner_and_another_goes_with_the_job():
    kept = children()["PersistentVolumeClaim"]
    assert "ownerReferences" not in kept["metadata"]
    assert kept["spec"] == {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "100Gi"}}}

    volume = {"retain": False, "size": "5Gi", "storageClassName": "fast", "accessMode": "ReadWriteOnce"}
    owned = children(checkpoint={"volume": volume})["PersistentVolumeClaim"]
    assert owned["metadata"]["ownerReferences"][0]["uid"] == UID
    assert owned["spec"]["storageClassName"] == "fast"


def test_a_claim_that_exists_is_used_and_none_is_made():
    spec: dict[str, Any] = {"checkpoint": {"volume": {"existingClaim": "mine", "subPath": "runs/1"}}}
    assert "PersistentVolumeClaim" not in children(**spec)
    assert {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "mine"}} in worker(**spec)["volumes"]
    mount = {"name": "checkpoints", "mountPath": "/checkpoints", "subPath": "runs/1"}
    assert mount in worker(**spec)["containers"][0]["volumeMounts"]


def test_all_workers_are_there_or_none_and_each_has_its_gpus_and_shared_memory():
    group = cluster(cluster={"nodes": 3, "gpusPerNode": 8, "worker": {"sharedMemory": "2Gi"}})["workerGroupSpecs"][0]
    spec = group["template"]["spec"]

    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (3, 3, 3)
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}} in spec["volumes"]
    assert {"name": "shared-memory", "mountPath": "/dev/shm"} in spec["containers"][0]["volumeMounts"]


def test_the_head_runs_ray_and_the_agent_and_no_training():
    spec = cluster()
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    containers = {each["name"]: each for each in spec["headGroupSpec"]["template"]["spec"]["containers"]}
    assert list(containers) == ["ray-head", "agent"]
    assert containers["agent"]["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": 8900}
    assert "nvidia.com/gpu" not in containers["ray-head"]["resources"]["limits"]


def test_prometheus_scrapes_the_agent_where_the_operator_is_told_where_it_runs():
    told = SETTINGS.model_copy(update={"monitoring_namespace": "prom"})
    (policy,) = (each for each in lasting_children(job(), told, trains=True) if each["kind"] == "NetworkPolicy")
    template = cluster_of(job(), "trainer:1", told, Placement())["spec"]["headGroupSpec"]["template"]["spec"]

    assert {
        "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "prom"}}}],
        "ports": [{"protocol": "TCP", "port": 8900}],
    } in policy["spec"]["ingress"]
    assert template["containers"][1]["env"] == [{"name": OPEN_METRICS_VARIABLE, "value": "true"}]


def test_nobody_else_reaches_a_job_s_pods_than_themselves_and_the_operator():
    ingress = children()["NetworkPolicy"]["spec"]["ingress"]

    assert [list(rule["from"][0]) for rule in ingress] == [["podSelector"], ["namespaceSelector"]]
    assert head()["containers"][1]["env"] == []


@pytest.mark.parametrize("template", [head, worker])
def test_pods_are_restricted_and_carry_no_kubernetes_token(template):
    spec = template()
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }


@pytest.mark.parametrize("template", [head, worker])
def test_a_pod_has_time_to_save_a_checkpoint_before_it_ends(template):
    spec = template(recovery={"evictionGracePeriod": "90s"})
    assert spec["terminationGracePeriodSeconds"] == 90 + 30
    for each in spec["containers"]:  # the agent too: it tells how the driver has ended
        hook = each["lifecycle"]["preStop"]["exec"]["command"]
        assert hook[:2] == ["rljob", "stop"]
        assert parse_duration(hook[-1]) == 90


def test_variables_volumes_and_pull_secrets_reach_head_and_workers():
    spec: dict[str, Any] = {
        "env": [{"name": "A", "value": "b"}, {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        "envFrom": [{"secretRef": {"name": "more"}}],
        "volumes": [{"name": "data", "emptyDir": {}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "imagePullSecrets": [{"name": "registry"}],
        "cluster": {"priorityClassName": "high"},
    }
    for pod in (head(**spec), worker(**spec)):
        container = pod["containers"][0]
        assert [each["name"] for each in container["env"]] == ["A", "S"]
        assert container["envFrom"] == [{"secretRef": {"name": "more"}}]
        assert {"name": "data", "mountPath": "/data"} in container["volumeMounts"]
        assert {"name": "data", "emptyDir": {}} in pod["volumes"]
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert pod["priorityClassName"] == "high"


def test_a_user_s_template_is_merged_by_name():
    template = {
        "metadata": {"labels": {"team": "a"}},
        "spec": {
            "nodeSelector": {"pool": "gpu"},
            "containers": [
                {
                    "name": "ray-worker",
                    "env": [{"name": "A", "value": "new"}],
                    "resources": {"limits": {"rdma/ib": "1"}},
                },
                {"name": "sidecar", "image": "s:1"},
            ],
        },
    }
    spec: dict[str, Any] = {
        "env": [{"name": "A", "value": "old"}, {"name": "B", "value": "b"}],
        "cluster": {"worker": {"template": template}},
    }
    group = cluster(**spec)["workerGroupSpecs"][0]["template"]
    pod = group["spec"]

    assert group["metadata"]["labels"]["team"] == "a"
    assert group["metadata"]["labels"][names.ROLE_LABEL] == "worker"
    assert pod["nodeSelector"] == {"pool": "gpu"}
    assert [each["name"] for each in pod["containers"]] == ["ray-worker", "sidecar"]
    assert pod["containers"][0]["env"] == [{"name": "A", "value": "new"}, {"name": "B", "value": "b"}]
    assert pod["containers"][0]["resources"]["limits"] == {
        "memory": "64Gi", "nvidia.com/gpu": "8", "rdma/ib": "1",
    }  # fmt: skip


def test_a_placement_reaches_every_pod_and_wins():
    placement = PlacementClass(
        labels={"queue": "q"}, annotations={"gang": "g"}, tolerations=({"key": "spot", "operator": "Exists"},),
        node_selector={"zone": "b"}, scheduler_name="volcano",
    )  # fmt: skip
    template = {"spec": {"nodeSelector": {"zone": "a", "pool": "x"}, "tolerations": [{"key": "gpu"}]}}
    spec = cluster(placement, cluster={"head": {"template": template}, "worker": {"template": template}})
    for group in (spec["headGroupSpec"], spec["workerGroupSpecs"][0]):
        pod = group["template"]["spec"]
        assert pod["nodeSelector"] == {"zone": "b", "pool": "x"}
        assert pod["tolerations"][2:] == [{"key": "gpu"}, {"key": "spot", "operator": "Exists"}]
        assert pod["schedulerName"] == "volcano"
        assert group["template"]["metadata"]["labels"]["queue"] == "q"
        assert group["template"]["metadata"]["annotations"]["gang"] == "g"


def test_the_api_keeps_the_names_and_places_of_our_volumes():
    """Its rules have words of their own for them."""
    made = cluster()
    head, worker = (each["template"]["spec"] for each in (made["headGroupSpec"], made["workerGroupSpecs"][0]))
    assert [each["name"] for each in head["volumes"]] == [*JOB_VOLUMES]
    assert [each["name"] for each in worker["volumes"]] == [*JOB_VOLUMES, SHARED_MEMORY]
    assert [each["mountPath"] for each in worker["containers"][0]["volumeMounts"]] == [*FOLDERS]


def test_pods_leave_a_lost_node_in_time_unless_their_template_says_otherwise():
    keys = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
    own = [{"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 90} for key in keys]
    stays = {"key": keys[0], "operator": "Exists"}
    spec = cluster(
        recovery={"nodeLostAfter": "1m30s"}, cluster={"worker": {"template": {"spec": {"tolerations": [stays]}}}}
    )
    assert spec["headGroupSpec"]["template"]["spec"]["tolerations"] == own
    assert spec["workerGroupSpecs"][0]["template"]["spec"]["tolerations"] == [own[1], stays]


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({"key": LOST_NODE_TAINTS[0], "operator": "Exists", "effect": "NoSchedule"}, 2),
        ({"key": LOST_NODE_TAINTS[0], "operator": "Exists"}, 1),
        ({"operator": "Exists"}, 2),
    ],
)
def test_a_toleration_that_does_not_name_the_taint_says_nothing_of_lost_nodes(given, ours):
    spec = cluster(cluster={"head": {"template": {"spec": {"tolerations": [given]}}}})
    tolerations = spec["headGroupSpec"]["template"]["spec"]["tolerations"]
    assert (len(tolerations), tolerations[-1]) == (1 + ours, given), "the first that matches counts"


def test_a_template_takes_no_folder_of_the_operator_s():
    mounts = [{"name": "scratch", "mountPath": "/checkpoints"}]
    template = {"spec": {"containers": [{"name": "ray-head", "volumeMounts": mounts}]}}
    with pytest.raises(CannotMerge, match=r"template.spec.containers\[ray-head\].volumeMounts: /checkpoints belongs"):
        cluster(volumes=[{"name": "scratch", "emptyDir": {}}], cluster={"head": {"template": template}})


def test_only_the_job_s_own_pods_and_the_operator_s_namespace_get_in():
    policy = children()["NetworkPolicy"]["spec"]
    own = {"podSelector": {"matchLabels": {"rljob.dev/job": "job"}}}
    operator = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "rljob-system"}}}
    ports = [{"protocol": "TCP", "port": 8265}, {"protocol": "TCP", "port": 8900}]
    assert policy["ingress"] == [{"from": [own]}, {"from": [operator], "ports": ports}]


@pytest.mark.parametrize(("trains", "available"), [(True, 4), (False, 0)])  # four workers and a head
def test_one_pod_of_a_job_that_trains_may_be_evicted_and_all_of_another(trains, available):
    made = lasting_children(job(cluster={"nodes": 4}), SETTINGS, trains=trains)
    (budget,) = (each for each in made if each["kind"] == "PodDisruptionBudget")
    assert budget["spec"]["minAvailable"] == available


MERGES = [
    ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
    ({"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}),
    ({"a": 1}, {"a": None}, {}),
    ({"args": ["a"]}, {"args": ["b"]}, {"args": ["b"]}),
    (
        {"volumes": [{"name": "a", "v": 1}, {"name": "b"}]},
        {"volumes": [{"name": "a", "v": 2}, {"name": "c"}]},
        {"volumes": [{"name": "a", "v": 2}, {"name": "b"}, {"name": "c"}]},
    ),
    (  # another source takes the place of ours
        {"volumes": [{"name": "a", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]},
        {"volumes": [{"name": "a", "hostPath": {"path": "/dev/shm"}, "configMap": None}]},
        {"volumes": [{"name": "a", "hostPath": {"path": "/dev/shm"}}]},
    ),
    (  # the same source is merged
        {"volumes": [{"name": "a", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]},
        {"volumes": [{"name": "a", "emptyDir": {"sizeLimit": "2Gi"}}]},
        {"volumes": [{"name": "a", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}]},
    ),
    (
        {"ports": [{"containerPort": 53, "name": "a"}]},
        {"ports": [{"containerPort": 53, "protocol": "UDP", "name": "u"}, {"containerPort": 53, "name": "t"}]},
        {"ports": [{"containerPort": 53, "name": "t"}, {"containerPort": 53, "protocol": "UDP", "name": "u"}]},
    ),
    (  # what they lack the API server says
        {"containers": [{"name": "a"}]},
        {"containers": [{"image": "i1"}, {"image": "i2"}]},
        {"containers": [{"name": "a"}, {"image": "i1"}, {"image": "i2"}]},
    ),
    (
        {"volumeMounts": [{"mountPath": "/a", "name": "x"}]},
        {"volumeMounts": [{"mountPath": "/a", "name": "y"}]},
        {"volumeMounts": [{"mountPath": "/a", "name": "y"}]},
    ),
]


_WORKER = "spec.cluster.worker.template.spec"
_MINE = f"{_WORKER}.containers[1]"
_TWICE = "; change or remove one"


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({"env": "none"}, f"{_MINE}.env must be a list"),
        ({"env": ["a"]}, f"{_MINE}.env must be a list of objects"),
        ({"resources": []}, f"{_MINE}.resources must be an object"),
        (
            {"env": [{"name": "A", "value": "a"}, {"name": "B"}, {"name": "A"}]},
            f"{_MINE}.env[2] has the same name A as {_MINE}.env[0]{_TWICE}",
        ),
        (
            {"volumeMounts": [{"name": "x", "mountPath": "/same"}, {"name": "y", "mountPath": "/same"}]},
            f"{_MINE}.volumeMounts[1] has the same mountPath /same as {_MINE}.volumeMounts[0]{_TWICE}",
        ),
        (
            {"name": "side", "image": "i2"},
            f"{_MINE} has the same name side as {_WORKER}.containers[0]{_TWICE}",
        ),
    ],
)
def test_a_template_of_another_form_or_that_says_one_thing_twice_is_refused_by_its_path(container, words):
    template = {"spec": {"containers": [{"name": "side", "image": "i1"}, {"name": "ray-worker", **container}]}}
    with pytest.raises(CannotMerge, match=f"^{re.escape(words)}$"):
        cluster(cluster={"worker": {"template": template}})


def test_so_is_a_port_of_the_head_that_it_has_twice():
    """Without a protocol it is one of TCP."""
    ports = [{"containerPort": 53}, {"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53, "protocol": "TCP"}]
    template = {"spec": {"containers": [{"name": "ray-head", "ports": ports[:2]}]}}
    made = cluster(cluster={"head": {"template": template}})["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert [each for each in made["ports"] if each["containerPort"] == 53] == ports[:2]

    template = {"spec": {"containers": [{"name": "ray-head", "ports": ports}]}}
    with pytest.raises(CannotMerge, match=r"ports\[2\] has the same containerPort 53, protocol TCP as .*ports\[0\]; "):
        cluster(cluster={"head": {"template": template}})


@pytest.mark.parametrize(("base", "patch", "expected"), MERGES)
def test_templates_merge_strategically(base, patch, expected):
    assert merged(base, patch) == expected


@pytest.mark.parametrize("pod", ["head", "worker"])
def test_a_users_template_cannot_hide_a_pod_or_make_it_another_jobs(pod: str):
    template = {"metadata": {"labels": {"rljob.dev/job": "other", "rljob.dev/role": "x", "team": "a"}}}
    groups = cluster(cluster={"nodes": 2, "gpusPerNode": 4, pod: {"template": template}})
    made = (groups["headGroupSpec"] if pod == "head" else groups["workerGroupSpecs"][0])["template"]["metadata"]
    assert made["labels"] | {"rljob.dev/job": "job", "rljob.dev/role": pod, "team": "a"} == made["labels"]
