"""The API server's words of objects that were made for a job, with the fields that its author wrote."""

import re
from typing import Any

import pytest

from rljob_operator.decide import decide, refused
from rljob_operator.decide.fields import ignored
from rljob_operator.job import Job
from rljob_operator.kube.errors import Invalid
from rljob_operator.observe.words import one_line
from rljob_operator.render import Placement, cluster_of
from tests.rljob_operator.decisions import phase, plan_for
from tests.rljob_operator.snapshots import (
    NOW,
    PODS,
    REWARDS,
    SETTINGS,
    attempted,
    conditions,
    job,
    ray_cluster,
    snapshot,
)

SIDE = {"name": "side", "env": [{"name": "A", "value": "a"}, {"name": "B"}], "volumeMounts": [{"mountPath": "/s"}]}
POD: dict[str, Any] = {
    "metadata": {"annotations": {"a": "b"}},
    "spec": {
        "tolerations": [{"key": "x"}, {"key": "gpu", "operator": "?"}],
        "dnsConfig": {"searches": ["a.b", "#"]},
        "volumes": [{"name": "own"}],
        "initContainers": [{"name": "first", "env": [{"name": "C"}]}],
        "containers": [
            SIDE,
            {"name": "ray-head", "env": [{"name": "D"}]},
            {"name": "ray-worker", "livenessProbe": {"periodSeconds": -1}},
        ],
    },
}
JOB = job(
    volumes=[{"name": "data"}, {"name": "job"}, {"name": "shared-memory"}],
    volumeMounts=[{"name": "data", "mountPath": "/data"}, {"name": "data", "mountPath": "/checkpoints"}],
    env=[{"name": "A", "value": "x"}, {"name": "E", "value": "y"}],
    envFrom=[{"secretRef": {"name": "s"}}],
    cluster={"nodes": 2, "gpusPerNode": 4, "head": {"template": POD}, "worker": {"template": POD}},
    rewards={"models": [REWARDS["models"][1], {**REWARDS["models"][0], "template": POD}]},
)

TYPO = {
    "metadata": {"annotation": {"a": "b"}},
    "spec": {"bogusField": 1, "tolerationz": [{"key": "x"}], "containers": [{"name": "side", "imagee": "i"}]},
}
TYPOS = job(
    cluster={"nodes": 2, "gpusPerNode": 4, "head": {"template": TYPO}, "worker": {"template": TYPO}},
    rewards={"models": [REWARDS["models"][1], {**REWARDS["models"][0], "template": TYPO}]},
)

HEAD, WORKER = "spec.headGroupSpec.template", "spec.workerGroupSpecs[0].template"
OWN_HEAD, OWN_WORKER = "spec.cluster.head.template", "spec.cluster.worker.template"
FIELDS = [
    # head: the volumes checkpoints, job, auth; the containers ray-head, agent, side
    (f"{HEAD}.spec.volumes[3].name", "spec.volumes[0].name"),
    (f"{HEAD}.spec.volumes[4]", "spec.volumes[1]"),
    (f"{HEAD}.spec.volumes[6].hostPath", f"{OWN_HEAD}.spec.volumes[0].hostPath"),
    (f"{HEAD}.spec.volumes[2]", f"{HEAD}.spec.volumes[2]"),  # auth: nobody's but ours
    (f"{HEAD}.spec.containers[0].volumeMounts[2].name", "spec.volumeMounts[0].name"),
    (f"{HEAD}.spec.containers[0].volumeMounts[3]", "spec.volumeMounts[1]"),
    (f"{HEAD}.spec.containers[0].env[1].name", "spec.env[1].name"),
    (f"{HEAD}.spec.containers[0].env[2].name", f"{OWN_HEAD}.spec.containers[1].env[0].name"),
    (f"{HEAD}.spec.containers[0].envFrom[0]", "spec.envFrom[0]"),
    (f"{HEAD}.spec.containers[0].resources", f"{HEAD}.spec.containers[0].resources"),
    (f"{HEAD}.spec.containers[2].image", f"{OWN_HEAD}.spec.containers[0].image"),
    (f"{HEAD}.spec.containers[2].env[1].value", f"{OWN_HEAD}.spec.containers[0].env[1].value"),
    (f"{HEAD}.spec.initContainers[0].env[0]", f"{OWN_HEAD}.spec.initContainers[0].env[0]"),
    (f"{HEAD}.spec.tolerations[3].operator", f"{OWN_HEAD}.spec.tolerations[1].operator"),
    (f"{HEAD}.spec.tolerations[0]", f"{HEAD}.spec.tolerations[0]"),
    (f"{HEAD}.metadata.annotations[a]", f"{OWN_HEAD}.metadata.annotations[a]"),
    (f"{HEAD}.annotations", f"{OWN_HEAD}.metadata.annotations"),  # as the API server says it
    (f"{HEAD}.spec.dnsConfig.searches[1]", f"{OWN_HEAD}.spec.dnsConfig.searches[1]"),
    (f"{WORKER}.spec.volumes[5]", "spec.volumes[2]"),
    (f"{WORKER}.spec.containers[0].livenessProbe.periodSeconds",
     f"{OWN_WORKER}.spec.containers[2].livenessProbe.periodSeconds"),
    (f"{WORKER}.spec.containers[0].image", f"{WORKER}.spec.containers[0].image"),
    (f"{WORKER}.spec.containers[2].image", f"{OWN_WORKER}.spec.containers[1].image"),  # ray-head is not ours there
    (f"{HEAD}.spec.containers[3].image", f"{OWN_HEAD}.spec.containers[2].image"),  # nor ray-worker here
    (f"{HEAD}.spec.containers[1].image", f"{HEAD}.spec.containers[1].image"),  # agent
    (f"{WORKER}.spec.volumes[99]", f"{WORKER}.spec.volumes[99]"),
    ("spec.rayVersion", "spec.rayVersion"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "expected"), FIELDS)
def test_a_field_of_the_ray_cluster_is_named_as_the_job_has_it(field, expected):
    seen = snapshot(JOB)
    error = Invalid(f'RayCluster.ray.io "job" is invalid: [{field}: Required value, spec.x: Forbidden: {{"a.b":1}}]')
    status = refused(seen, decide(seen, SETTINGS), error).status
    assert conditions(status)["Failed"] == ("True", "ObjectInvalid")
    assert status is not None
    said = next(each.message for each in status.conditions if each.type == "Failed")
    assert f'"job" is invalid: [{expected}: Required value, spec.x: Forbidden' in said


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("spec.template.spec.volumes[1].name", "spec.volumes[0].name"),
        ("spec.template.spec.tolerations[2].key", "spec.rewards.models[1].template.spec.tolerations[0].key"),
        ("spec.template.spec.containers[0].image", "spec.template.spec.containers[0].image"),  # vllm: ours
        ("spec.template.spec.containers[1].image", "spec.rewards.models[1].template.spec.containers[0].image"),
        ("spec.template.spec.containers[2].image", "spec.rewards.models[1].template.spec.containers[1].image"),
    ],
)
def test_so_is_one_of_a_reward_model_s_deployment(field, expected):
    seen = snapshot(JOB)
    error = Invalid(f'Deployment.apps "job-rm-rm" is invalid: {field}: Required value')
    status = refused(seen, decide(seen, SETTINGS), error).status
    assert status is not None
    assert f'"job-rm-rm" is invalid: {expected}: Required' in status.conditions[0].message


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (".spec.template.spec.tolerationz", "spec.rewards.models[1].template.spec.tolerationz"),
        (".spec.template.", 'spec.rewards.models[1].template.""'),
        (".spec.template.spec.", 'spec.rewards.models[1].template.spec.""'),
        (
            '.spec.template.spec.containers[name="side"].',
            'spec.rewards.models[1].template.spec.containers[name="side"].""',
        ),
        (
            '.spec.template.spec.containers[name="side"].imagee',
            'spec.rewards.models[1].template.spec.containers[name="side"].imagee',
        ),
    ],
)
def test_a_field_that_server_side_apply_does_not_know_ends_a_new_job_and_is_named(field, expected):
    seen = snapshot(TYPOS)
    words = (
        f"failed to create typed patch object (team/job-rm-rm; apps/v1, Kind=Deployment): {field}: field not declared"
    )
    status = refused(seen, decide(seen, SETTINGS), Invalid(words)).status
    assert conditions(status)["Failed"] == ("True", "ObjectInvalid")
    assert status is not None
    assert f"Kind=Deployment): {expected}: field not declared" in status.conditions[0].message


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (f"{HEAD}.spec.bogusField", f"{OWN_HEAD}.spec.bogusField"),
        (f"{WORKER}.spec.tolerationz", f"{OWN_WORKER}.spec.tolerationz"),
        (f"{WORKER}.spec.containers[1].imagee", f"{OWN_WORKER}.spec.containers[0].imagee"),
        (f"{WORKER}.metadata.annotation", f"{OWN_WORKER}.metadata.annotation"),
        ("spec.fieldOfTomorrow", "spec.fieldOfTomorrow"),
    ],
)
def test_a_field_that_the_ray_cluster_was_made_without_is_named_as_the_job_has_it(field, expected):
    made = cluster_of(TYPOS, "trainer:1", SETTINGS, Placement())
    told = ignored(TYPOS, made, [f'unknown field "{field}"'])
    assert (told.reason, told.warning) == ("FieldIgnored", True)
    assert told.message == (
        f'RayCluster job is made without what the API server does not know: unknown field "{expected}"'
    )


NIL = (
    '<nil>: Invalid value: "": some validation rules were not checked because the object was invalid; correct the'
    " existing errors to complete validation"
)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (  # of one thing that is written once, and is in head and worker
            f'[{HEAD}.spec.volumes[3]: Repeated: "a, b", {WORKER}.spec.volumes[3]: Repeated: "a, b", spec.x: Required]',
            '[spec.volumes[0]: Repeated: "a, b", spec.x: Required]',
        ),
        (f"[{HEAD}.spec.volumes[3].name: Required value, {NIL}]", "spec.volumes[0].name: Required value"),
        (f"{HEAD}.spec.volumes[3].name: Required value", "spec.volumes[0].name: Required value"),
    ],
)
def test_a_refusal_says_each_thing_once(words, expected):
    seen = snapshot(JOB)
    status = refused(seen, decide(seen, SETTINGS), Invalid(f'RayCluster.ray.io "job" is invalid: {words}')).status
    assert status is not None
    assert status.conditions[0].message == f'the API server refuses it: RayCluster.ray.io "job" is invalid: {expected}'


def test_a_fraction_that_the_api_server_does_not_name_is_found_in_the_job():
    spec = {"securityContext": {"supplementalGroups": [7, 1e-30]}, "containers": [
        {"name": "vllm", "resources": {"limits": {"cpu": 0.5}}, "livenessProbe": {"periodSeconds": 10.5}},
    ]}  # fmt: skip
    base = job(rewards={"models": [{**REWARDS["models"][0], "template": {"spec": spec}}]})
    words = "failed to convert new object (team/job-rm-rm; apps/v1, Kind=Deployment) to proper version: "
    told = f"{words}unable to convert unstructured object: cannot convert float64 to int64"
    seen = snapshot(base)
    status = refused(seen, decide(seen, SETTINGS), Invalid(told)).status
    assert conditions(status)["Failed"] == ("True", "ObjectInvalid")
    assert status is not None
    at = "spec.rewards.models[0].template.spec"
    assert status.conditions[0].message.endswith(
        f"float64 to int64; {at}.containers[0].livenessProbe.periodSeconds is 10.5: write a whole number;"
        f" {at}.securityContext.supplementalGroups[1] is 1e-30: write a whole number"
    )


@pytest.mark.parametrize(
    ("annotations", "most"),
    [
        ({"note": "x" * 5000}, "spec.cluster.worker.template.metadata.annotations.note, of 5002"),
        ({f"note{each}": "x" * 100 for each in range(60)}, "spec.cluster.worker.template.metadata.annotations, of "),
    ],
)  # fmt: skip
def test_a_job_that_is_too_large_for_its_config_map_is_told_of_its_largest_field(annotations, most):
    words = 'ConfigMap "job-job" is invalid: []: Too long: may not be more than 1048576 bytes'
    seen = snapshot(job(cluster={"worker": {"template": {"metadata": {"annotations": annotations}}}}))
    status = refused(seen, decide(seen, SETTINGS), Invalid(words)).status
    assert conditions(status)["Failed"] == ("True", "ObjectInvalid")
    assert status is not None
    assert f"{words}; most of it is {most}" in status.conditions[0].message


def test_so_does_what_was_made_without_fields():
    made = cluster_of(TYPOS, "trainer:1", SETTINGS, Placement())
    unknown = [f'unknown field "{HEAD}.spec.bogusField"', 'unknown field "spec.x"', 'unknown field "spec.x"']
    words = f'unknown field "{OWN_HEAD}.spec.bogusField"; unknown field "spec.x"'
    assert ignored(TYPOS, made, unknown).message.endswith(f"does not know: {words}")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", ""),
        ("quota", "quota"),
        ("FailedCreateHeadPod\npods is forbidden", "FailedCreateHeadPod: pods is forbidden"),
        ("typed patch: errors:\n  .a: no\n  .b: no\n  .a: no\n", "typed patch: errors: .a: no; .b: no"),
    ],
)
def test_conditions_have_words_of_one_line(words, expected):
    assert one_line(words) == expected


def failing(message: str, base: Job = JOB, **given: Any) -> dict[str, Any]:
    """KubeRay cannot make a pod of the job."""
    made = cluster_of(base, "trainer:1", SETTINGS, Placement())
    cluster = ray_cluster(0, provisioned=False) | {"spec": made["spec"]}
    cluster["status"]["conditions"].append({
        "type": "ReplicaFailure", "status": "True", "reason": "x", "message": message,
    })  # fmt: skip
    return {"base": base, "cluster": cluster, **given}


NOPE = 'Pod "job-head" is invalid: spec.containers[0].volumeMounts[2].name: Not found: "nope"'
FORBIDDEN = 'pods "job-head" is forbidden: exceeded quota: q'
WEBHOOK = 'admission webhook "w" denied the request: Pod "a" is invalid: no'


@pytest.mark.parametrize(
    ("message", "given", "ends"),
    [
        (f"FailedCreateHeadPod\n{NOPE}", {}, True),
        (f"FailedCreateWorkerPod {NOPE.replace('[2]', '[3]')}", {}, True),
        (f"FailedCreateHeadPod\n{FORBIDDEN}", {}, False),
        (f"FailedCreateHeadPod\n{WEBHOOK}", {}, False),
        (f"FailedCreateHeadPod\n{NOPE}", attempted("Ended", phase="Recovering", start_time=NOW), False),
        (f"FailedCreateHeadPod\n{NOPE}", attempted("Ended", phase="Starting"), True),  # resumed: the next is the first
    ],
)
def test_a_pod_that_is_invalid_ends_a_job_that_has_not_begun(message, given, ends):
    plan = plan_for(**failing(message, **given))
    assert (phase(plan) == "Failed") == ends
    assert plan.status is not None
    ready = next(each for each in plan.status.conditions if each.type == "Ready")
    assert ready.reason == ("ObjectInvalid" if ends else "ClusterNotReady")
    if ends:
        assert (
            'the API server refuses it: Pod "job-head" is invalid: spec.volumeMounts[0].name: Not found'
            in ready.message
        )
    else:
        assert re.search(r"KubeRay: FailedCreate(Head|Worker)Pod: ", ready.message)


def test_an_entry_is_known_again_though_the_api_server_keeps_no_null():
    wrong = {"key": "gpu", "operator": "Exists", "effect": "#"}
    template = {"spec": {"tolerations": [{**wrong, "tolerationSeconds": None}]}}
    base = job(cluster={"nodes": 2, "gpusPerNode": 4, "worker": {"template": template}})
    given = failing('FailedCreateWorkerPod\nPod "w" is invalid: spec.tolerations[2].effect: Unsupported value', base)
    tolerations = given["cluster"]["spec"]["workerGroupSpecs"][0]["template"]["spec"]["tolerations"]
    assert tolerations[2].pop("tolerationSeconds", "none") is None
    plan = plan_for(**given)
    assert plan.status is not None
    words = "spec.cluster.worker.template.spec.tolerations[0].effect: Unsupported value"
    assert plan.status.conditions[0].message.endswith(f'Pod "w" is invalid: {words}')


def test_a_field_of_a_pod_that_nobody_wrote_is_the_pod_s():
    plan = plan_for(
        **failing('FailedCreateWorkerPod\nPod "w" is invalid: spec.initContainers[7].image: Required value')
    )
    assert plan.status is not None
    words = 'Pod "w" is invalid: the pod\'s spec.initContainers[7].image: Required value'
    assert plan.status.conditions[0].message.endswith(words)


def test_nobody_waits_for_no_pods():
    suspended = job(suspend=True)
    for given, words in (
        ({}, "the RayCluster to end"),
        ({"pods": PODS[:1]}, "1 pod to end"),
        ({"pods": PODS}, "3 pods to end"),
    ):
        plan = plan_for(base=suspended, cluster=ray_cluster(), **given)
        assert plan.status is not None
        assert plan.status.conditions[0].message == f"spec.suspend is true: waiting for {words}"
