"""Whether an object still is what was made of it, and what is kept of one that is there."""

from collections.abc import Sequence
from typing import Any

import pytest

from rljob_operator import names
from rljob_operator.perform.drift import adapted, has_drifted, stamped
from rljob_operator.render.digest import digest

WANTED = {"metadata": {"name": "a", "annotations": {}}, "spec": {"cpu": "1000m", "list": [{"a": 1}], "empty": []}}

DRIFTS = [
    ("gone", None, True),
    ("as it was made", stamped(WANTED), False),
    ("with what the API server adds", stamped(WANTED) | {"status": {"x": 1}}, False),
    ("a quantity written otherwise", {**stamped(WANTED), "spec": {"cpu": "1", "list": [{"a": 1, "b": 2}]}}, False),
    ("another value", {**stamped(WANTED), "spec": {"cpu": "2", "list": [{"a": 1}]}}, True),
    ("a shorter list", {**stamped(WANTED), "spec": {"cpu": "1", "list": []}}, True),
    ("a longer list", {**stamped(WANTED), "spec": {"cpu": "1", "list": [{"a": 1}, {}]}}, True),
    ("made by another version", stamped(WANTED | {"more": 1}), True),
]


@pytest.mark.parametrize(("found", "drifted"), [row[1:] for row in DRIFTS], ids=[row[0] for row in DRIFTS])
def test_only_what_has_changed_is_written(found, drifted):
    assert has_drifted(found, stamped(WANTED)) is drifted


A, B, OTHER = {"name": "a", "value": "1"}, {"name": "b", "value": "2"}, {"name": "other"}
PORT, MOUNT, SHM = {"containerPort": 8000}, {"name": "shm", "mountPath": "/shm"}, {"name": "shm", "emptyDir": {"a": 1}}
RULE = {"from": [{"podSelector": {"x": "y"}}], "ports": [{"port": 80}]}

LISTS: list[tuple[str, str, list[Any], list[Any], bool]] = [
    ("a variable more", "env", [A, B], [OTHER, A, B], False),
    ("a variable instead of ours", "env", [A, B], [OTHER, A], True),
    ("none", "env", [A], [], True),
    ("a sidecar", "containers", [OTHER | {"env": [A]}], [A, OTHER | {"env": [B, A]}], False),
    ("a sidecar, and ours without a variable", "containers", [OTHER | {"env": [A]}], [A, OTHER | {"env": [B]}], True),
    ("a default", "ports", [PORT], [PORT | {"protocol": "TCP"}], False),
    ("our port's number of another protocol", "ports", [PORT], [PORT | {"protocol": "UDP"}], True),
    ("a Service's port more", "ports", [{"port": 80}], [{"port": 81}, {"port": 80, "protocol": "TCP"}], False),
    ("another volume at our path", "volumeMounts", [MOUNT], [MOUNT | {"name": "x"}], True),
    ("another volume of our name", "volumes", [SHM], [{"name": "shm", "hostPath": {}}], True),
    ("an owner more", "ownerReferences", [{"uid": "1"}], [{"uid": "2"}, {"uid": "1"}], False),
    ("arguments in another order", "args", ["a", "b"], ["b", "a"], True),
    ("a toleration more", "tolerations", [{"key": "a"}], [{"key": "a"}, {"key": "b"}], True),
    ("a rule more", "ingress", [RULE], [RULE, {}], True),
    ("a rule that lets in by another port", "ingress", [RULE], [RULE | {"ports": [{"port": 1}, {"port": 80}]}], True),
    ("no objects, as the API server will say", "hostAliases", ["a"], [{"ip": "a"}], True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "wanted", "found", "drifted"), [row[1:] for row in LISTS], ids=[row[0] for row in LISTS]
)
def test_what_others_have_put_beside_ours_is_no_drift_where_apply_leaves_it(field, wanted, found, drifted):
    assert has_drifted({"spec": {field: found}}, {"spec": {field: wanted}}) is drifted


def volume_claim(size: str, maker: str = "mine", owners: Sequence[str] = ("mine",)) -> dict[str, Any]:
    metadata: dict[str, Any] = {"annotations": {names.MAKER_ANNOTATION: maker} if maker else {}}
    if owners:
        metadata["ownerReferences"] = [{"uid": owner} for owner in owners]
    spec = {"a": 1, "resources": {"requests": {"storage": size}}}
    return {"kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize(("found", "expected"), [(None, "500Gi"), ("500Gi", "500Gi"), ("1Ti", "1Ti"), ("1Gi", "500Gi")])
def test_a_volume_that_somebody_has_grown_is_not_shrunk(found, expected):
    there = None if found is None else volume_claim(found)
    assert adapted(volume_claim("500Gi"), there) == volume_claim(expected)


@pytest.mark.parametrize(
    ("found", "owned"),
    [
        pytest.param(volume_claim("1Gi"), True, id="this job's"),
        pytest.param(volume_claim("1Gi", owners=()), True, id="this job's, that was to be kept"),
        pytest.param(volume_claim("1Gi", maker="other", owners=()), False, id="an earlier job's"),
        pytest.param(volume_claim("1Gi", maker="", owners=()), False, id="anybody's"),
    ],
)
def test_a_volume_that_was_kept_for_people_does_not_go_with_a_later_job(found, owned):
    made = adapted(volume_claim("1Gi"), found)["metadata"]
    assert ("ownerReferences" in made) is owned
    kept = found["metadata"]["annotations"].get(names.MAKER_ANNOTATION, "")
    assert made["annotations"][names.MAKER_ANNOTATION] == ("mine" if owned else kept)


def servers(image: str, replicas: int = 1, spec: str = "as it was") -> dict[str, Any]:
    """A Deployment as an operator renders it."""
    template = {"containers": [{"image": image}]}
    annotations = {names.SPEC_ANNOTATION: spec, names.TEMPLATE_ANNOTATION: digest(template)}
    deployment = {"replicas": replicas, "template": template}
    return {"kind": "Deployment", "metadata": {"annotations": annotations}, "spec": deployment}


def there(deployment: dict[str, Any], **container: Any) -> dict[str, Any]:
    """As the API server has it, which fills in defaults."""
    spec = deployment["spec"]
    containers = [{**each, "tty": False, **container} for each in spec["template"]["containers"]]
    return deployment | {"spec": {**spec, "template": {"containers": containers}}}


OLD, NEW = servers("v1"), servers("v2")
KEPT = [
    ("a newer operator", NEW, there(OLD), there(OLD)),
    ("a user's edit", OLD, there(OLD, image="x"), OLD),
    ("more of them", servers("v2", 3), there(OLD), there(servers("v1", 3))),
    ("another spec", servers("v2", spec="new"), there(OLD), servers("v2", spec="new")),
    ("none", NEW, None, NEW),
    ("another kind", {"kind": "ConfigMap"}, {"kind": "ConfigMap", "data": {"a": "2"}}, {"kind": "ConfigMap"}),
]


@pytest.mark.parametrize(("wanted", "found", "expected"), [row[1:] for row in KEPT], ids=[row[0] for row in KEPT])
def test_servers_of_reward_models_keep_the_template_that_they_were_made_from(wanted, found, expected):
    assert adapted(wanted, found) == expected


def test_servers_that_keep_their_template_are_written_once():
    """With the newer operator's stamp, and not again."""
    first = stamped(adapted(NEW, there(stamped(OLD))))
    assert has_drifted(there(stamped(OLD)), first)
    assert not has_drifted(there(first), stamped(adapted(NEW, there(first))))


@pytest.mark.parametrize("value", ["", 0, False, {}, []])
def test_an_empty_value_that_the_api_server_leaves_out_is_no_drift(value):
    wanted = stamped({"metadata": {"name": "a"}, "spec": {"env": [{"name": "A", "value": value}]}})
    assert not has_drifted({**wanted, "spec": {"env": [{"name": "A"}]}}, wanted)
    assert has_drifted({**wanted, "spec": {"env": [{"name": "A", "value": "x"}]}}, wanted) is (value not in ({}, []))
