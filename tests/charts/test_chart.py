"""What the chart renders, and which values it refuses."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e.cluster.errors import ClusterError
from rljob_operator import names
from rljob_operator.head.address import AGENT_PORT, RAY_PORT
from rljob_operator.kube.kinds import POD_GROUPS
from rljob_operator.main import LEASE_NAME
from rljob_operator.render import cluster_of
from rljob_operator.runtime import key
from tests.charts.chart import CHART, NAME, ROOT, VALUES, names_of, of_kind, only, render
from tests.rljob_operator.snapshots import SETTINGS, job
from tests.rljob_operator.test_operator_cli import told

CRD = ROOT / "crds/rljobs.rljob.dev.yaml"


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_every_set_of_values_is_linted(helm, values):
    helm("lint", "--strict", str(CHART), "--values=-", values=yaml.safe_dump(values))


def test_the_crd_is_the_generated_one_and_outlives_the_release(helm):
    crd = only(render(helm, {}), "CustomResourceDefinition")

    assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert crd == yaml.safe_load(CRD.read_text())


def test_a_release_for_all_namespaces_has_its_rights_everywhere(helm):
    objects = render(helm, {})

    assert names_of(of_kind(objects, "ClusterRole", "ClusterRoleBinding")) == {NAME, f"{NAME}-view", f"{NAME}-edit"}
    assert names_of(of_kind(objects, "Role", "RoleBinding")) == {f"{NAME}-self"}
    assert not [each for each in arguments(objects) if each.startswith("--namespace")]


def test_a_release_for_namespaces_has_its_rights_there_alone(helm):
    objects = render(helm, VALUES["namespaced"])
    roles, bindings = (
        {(each["metadata"]["namespace"], each["metadata"]["name"]) for each in of_kind(objects, kind)}
        for kind in ("Role", "RoleBinding")
    )

    assert roles == bindings == {("team-a", NAME), ("team-b", NAME), ("rljob-system", f"{NAME}-self")}
    assert not of_kind(objects, "ClusterRoleBinding")
    assert [each for each in arguments(objects) if each.startswith("--namespace")] == [
        "--namespace=team-a",
        "--namespace=team-b",
    ]


def test_the_rights_in_a_namespace_are_those_that_are_had_everywhere_else(helm):
    everywhere = next(each for each in of_kind(render(helm, {}), "ClusterRole") if each["metadata"]["name"] == NAME)
    here = next(each for each in of_kind(render(helm, VALUES["namespaced"]), "Role"))

    assert here["rules"] == everywhere["rules"]


def test_with_kueue_the_operator_reads_queues_and_kueue_reads_jobs_and_nothing_else_everywhere(helm):
    objects = render(helm, VALUES["queued"])
    roles = {each["metadata"]["name"]: each["rules"] for each in of_kind(objects, "ClusterRole")}
    readers = {each["roleRef"]["name"]: each["subjects"] for each in of_kind(objects, "ClusterRoleBinding")}

    assert {each["namespace"] for each in readers.pop(f"{NAME}-queues")} == {"rljob-system"}
    assert readers == {
        f"{NAME}-kueue": [{"kind": "ServiceAccount", "name": "kueue-controller-manager", "namespace": "queues"}]
    }
    for rule in roles[f"{NAME}-queues"] + roles[f"{NAME}-kueue"]:
        assert {*rule["verbs"]} <= {"get", "list", "watch"}


@pytest.mark.parametrize("wanted", [False, True])
def test_kueue_writes_the_status_of_jobs_only_with_multi_kueue(helm, wanted):
    objects = render(helm, {"kueue": {"enabled": True, "multiKueue": wanted}})
    roles = {each["metadata"]["name"]: each["rules"] for each in of_kind(objects, "ClusterRole")}
    written = [rule["verbs"] for rule in roles[f"{NAME}-kueue"] if rule["resources"] == ["rljobs/status"]]
    assert written == [["patch"]] * wanted


def test_a_gang_scheduler_takes_a_right_and_that_of_kubernetes_a_policy(helm):
    def granted(objects):
        rules = [rule for role in of_kind(objects, "ClusterRole") for rule in role["rules"]]
        return {(*rule["apiGroups"], *rule["verbs"]) for rule in rules if rule["resources"] == ["podgroups"]}

    objects, verbs = render(helm, VALUES["gangs"]), ("list", "watch", "create", "patch", "delete")
    groups = {kind.api_version.partition("/")[0] for kind in POD_GROUPS.values()}
    assert granted(objects) == {(group, *verbs) for group in groups}
    assert told(*arguments(objects)[1:])["coscheduling_scheduler"] == "gangs"
    policy, binding = only(objects, "MutatingAdmissionPolicy"), only(objects, "MutatingAdmissionPolicyBinding")
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    (selected,) = policy["spec"]["matchConstraints"]["objectSelector"]["matchExpressions"]
    assert selected["key"] == names.POD_GROUP_LABEL in str(policy["spec"]["mutations"])
    without = render(helm, {"gang": {"volcano": True}})
    assert granted(without) == {("scheduling.volcano.sh", *verbs)}
    assert not of_kind(without, "MutatingAdmissionPolicy")


def test_a_release_can_do_without_anything_cluster_wide(helm):
    objects = render(helm, VALUES["nothing cluster-wide"])

    assert all(each["metadata"].get("namespace") for each in objects)


def test_its_own_namespace_holds_one_lease_and_one_secret_for_it(helm):
    (role,) = (each for each in of_kind(render(helm, {}), "Role"))
    named = {tuple(rule["resources"]): rule["resourceNames"] for rule in role["rules"] if "resourceNames" in rule}

    assert named == {("leases",): [LEASE_NAME], ("secrets",): [key.NAME]}


def test_values_reach_the_pod(helm):
    values = VALUES["own image and nodes"]
    deployment = only(render(helm, values), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert deployment["spec"]["replicas"] == 3
    assert container["image"] == "registry.example.com:5000/rl/operator:1.2.3"
    assert container["imagePullPolicy"] == "Always"
    passed = ("imagePullSecrets", "priorityClassName", "nodeSelector", "tolerations", "affinity")
    assert {field: pod[field] for field in passed} == {field: values[field] for field in passed}
    assert deployment["spec"]["template"]["metadata"]["labels"]["team"] == "platform"
    assert deployment["spec"]["template"]["metadata"]["annotations"] == {"sidecar": "off"}
    assert container["args"] == [
        "run",
        "--operator-namespace=rljob-system",
        "--protect-own-namespace",
        "--listen=0.0.0.0:8080",
        "--trainer-image=registry.example.com/trainer:9",
        "--ray-version=2.60.1",
        "--poll-seconds=5",
        "--log-format=console",
    ]


def test_a_digest_stands_in_place_of_a_tag(helm):
    values = {"image": {"repository": "a/operator", "tag": "1", "digest": f"sha256:{'0' * 64}"}}
    (container,) = only(render(helm, values), "Deployment")["spec"]["template"]["spec"]["containers"]

    assert container["image"] == f"a/operator@sha256:{'0' * 64}"


def test_policies_are_those_that_are_wanted(helm):
    def policies(values: dict[str, Any]) -> set[str]:
        objects = render(helm, values)
        names = names_of(of_kind(objects, "ValidatingAdmissionPolicy"))
        bindings = of_kind(objects, "ValidatingAdmissionPolicyBinding")
        assert names == names_of(bindings) == {each["spec"]["policyName"] for each in bindings}
        return {name.removeprefix(f"{NAME}-").removesuffix(".rljob-system") for name in names}

    assert policies({}) == {"operator", "own-namespace"}
    assert policies(VALUES["strict"]) == {"operator", "own-namespace", "jobs"}
    assert policies(VALUES["nothing cluster-wide"]) == set()


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_operator_understands_its_arguments(helm, values):
    command, *options = arguments(render(helm, values))
    assert command == "run"

    found = told(*options)
    assert list(found["namespace"]) == values.get("namespaces", [])
    assert found["listen"] == "0.0.0.0:8080"


@pytest.mark.parametrize("empty", [{"operator": None}, {"operator": {"pollSeconds": None, "logFormat": None}}])
def test_an_operator_that_is_told_nothing_chooses_for_itself(helm, empty):
    command, *options = arguments(render(helm, empty))

    assert command == "run"
    assert told(*options)["trainer_image"] is None


def test_replicas_prefer_different_nodes_and_leave_them_one_at_a_time(helm):
    objects = render(helm, {})
    deployment, budget = only(objects, "Deployment"), only(objects, "PodDisruptionBudget")
    (preferred,) = deployment["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"].values()
    term = preferred[0]["podAffinityTerm"]

    assert deployment["spec"]["replicas"] == 2
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"] == deployment["spec"]["selector"] == budget["spec"]["selector"]
    assert budget["spec"]["maxUnavailable"] == 1


def test_the_operator_is_let_out_to_heads_and_the_api_server_and_in_from_prometheus(helm):
    values = {"monitoring": {"namespace": "prom"}, "networkPolicy": {"apiServerPorts": [8443]}}
    policy = only(render(helm, values), "NetworkPolicy")["spec"]
    ((ingress,), (_, api_server, heads)) = policy["ingress"], policy["egress"]

    assert ingress["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "prom"}}}]
    assert [each["port"] for each in api_server["ports"]] == [8443]
    assert heads["to"][0]["podSelector"]["matchLabels"] == {names.ROLE_LABEL: names.HEAD}
    assert [each["port"] for each in heads["ports"]] == [RAY_PORT, AGENT_PORT]


def test_monitors_scrape_every_replica_and_every_agent(helm):
    objects = render(helm, VALUES["monitored"])
    service, of_operator, of_jobs = (only(objects, kind) for kind in ("Service", "ServiceMonitor", "PodMonitor"))
    head = cluster_of(job(), "trainer:1", SETTINGS, {})["spec"]["headGroupSpec"]["template"]
    (endpoint,) = of_jobs["spec"]["podMetricsEndpoints"]

    assert of_operator["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert of_operator["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert of_jobs["spec"]["selector"]["matchLabels"].items() <= head["metadata"]["labels"].items()
    assert endpoint["port"] in [port["name"] for each in head["spec"]["containers"] for port in each["ports"]]
    assert endpoint["relabelings"][0]["sourceLabels"] == [prometheus_label(names.JOB_LABEL)]
    assert {each["metadata"]["labels"]["release"] for each in (of_operator, of_jobs)} == {"prometheus"}
    assert "--monitoring-namespace=monitoring" in arguments(objects)


def prometheus_label(label: str) -> str:
    """What Prometheus calls a pod's label."""
    return "__meta_kubernetes_pod_label_" + re.sub(r"[^a-zA-Z0-9_]", "_", label)


def test_agents_ask_for_their_tokens_where_nobody_monitors_them(helm):
    objects = render(helm, {"monitoring": {"serviceMonitor": True}})

    assert not of_kind(objects, "PodMonitor")
    assert not [each for each in arguments(objects) if each.startswith("--monitoring-namespace")]


def test_user_roles_become_part_of_kubernetes_own_ones_unless_that_is_unwanted(helm):
    def aggregated(values: dict[str, Any]) -> dict[str, list[str]]:
        prefix = "rbac.authorization.k8s.io/aggregate-to-"
        return {
            each["metadata"]["name"]: [name for name in each["metadata"]["labels"] if name.startswith(prefix)]
            for each in of_kind(render(helm, values), "ClusterRole")
            if each["metadata"]["name"] != NAME
        }

    view, edit = "rbac.authorization.k8s.io/aggregate-to-view", "rbac.authorization.k8s.io/aggregate-to-edit"
    assert aggregated({}) == {f"{NAME}-view": [view], f"{NAME}-edit": [edit]}
    assert aggregated({"userRoles": {"aggregate": False}}) == {f"{NAME}-view": [], f"{NAME}-edit": []}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown value": ({"replica": 3}, "at '': additional properties 'replica' not allowed"),
    "an unknown value within": ({"image": {"name": "a"}}, "at '/image': additional properties 'name' not allowed"),
    "a number as text": ({"replicas": "two"}, "at '/replicas': got string, want integer"),
    "no replica": ({"replicas": 0}, "at '/replicas': minimum: got 0, want 1"),
    "no namespace's name": ({"namespaces": ["Team A"]}, "at '/namespaces/0': 'Team A' does not match pattern"),
    "a namespace twice": ({"namespaces": ["a", "a"]}, "at '/namespaces': items at 0 and 1 are equal"),
    "no poll": ({"operator": {"pollSeconds": 0}}, "at '/operator/pollSeconds': exclusiveMinimum: got 0, want 0"),
    "a log format": ({"operator": {"logFormat": "xml"}}, "at '/operator/logFormat': value must be one of"),
    "an image with its tag in it twice": ({"image": {"tag": 1.0}}, "at '/image/tag': got number, want string"),
    "a port": ({"networkPolicy": {"apiServerPorts": [70000]}}, "at '/networkPolicy/apiServerPorts/0': maximum"),
    "a section taken away": ({"image": None}, "at '': missing property 'image'"),
    "no amount of memory": ({"resources": {"limits": {"memory": "lots"}}}, "'lots' does not match pattern"),
    "no image": (
        {"operator": {"trainerImage": "an image"}},
        "at '/operator/trainerImage': 'an image' does not match pattern",
    ),
    "a label by which its pods are found": (
        {"podLabels": {"app.kubernetes.io/instance": "other"}},
        "at '/podLabels/app.kubernetes.io~1instance': false schema",
    ),
    "half a digest": ({"image": {"digest": "sha256:ab"}}, "at '/image/digest': 'sha256:ab' does not match pattern"),
    "no Secret's name": (
        {"admission": {"jobs": {"secrets": ["a b"]}}},
        "at '/admission/jobs/secrets/0': 'a b' does not match pattern",
    ),
    "an interval": ({"monitoring": {"interval": "30"}}, "at '/monitoring/interval': '30' does not match pattern"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_value_is_refused_by_its_name(helm, case):
    values, message = REFUSED[case]
    with pytest.raises(ClusterError) as error:
        render(helm, values)
    assert message in str(error.value)


DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())

NEEDED = {
    "admission", "admission.jobs", "admission.jobs.claims", "admission.jobs.enabled", "admission.jobs.secrets",
    "admission.operator", "admission.ownNamespace", "crds", "crds.install", "image", "image.pullPolicy",
    "image.repository", "monitoring", "monitoring.interval", "monitoring.namespace", "networkPolicy",
    "networkPolicy.apiServerPorts", "networkPolicy.enabled", "replicas", "serviceAccount", "userRoles",
    "gang", "gang.coscheduling", "gang.native", "gang.volcano",
    "kueue", "kueue.enabled", "kueue.namespace", "kueue.serviceAccount", "userRoles.aggregate", "userRoles.create",
}  # fmt: skip
"""Values without which less is rendered than the defaults say, or what no API server takes, or what lets all out."""


def paths(values: dict[str, Any], within: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield f"{within}{name}"
        if isinstance(value, dict):
            yield from paths(value, f"{within}{name}.")


def without(path: str) -> dict[str, Any]:
    """Values that take this one away, with everything monitored and refused, so that all templates are rendered."""
    values: dict[str, Any] = {
        "monitoring": {"serviceMonitor": True, "podMonitor": True, "dashboard": True},
        "admission": {"jobs": {"enabled": True}},
        "kueue": {"enabled": True},
        "gang": {"volcano": True, "coscheduling": True, "native": True},
    }
    *sections, last = path.split(".")
    section = values
    for name in sections:
        section = section.setdefault(name, {})
    section[last] = None
    return values


@pytest.mark.parametrize("path", sorted(NEEDED))
def test_a_value_that_is_needed_is_not_taken_away_by_null(helm, path):
    section, _, last = f"/{path.replace('.', '/')}".rpartition("/")
    with pytest.raises(ClusterError) as error:
        render(helm, without(path))
    assert f"at '{section}': missing property '{last}'" in str(error.value)


@pytest.mark.parametrize("path", sorted({*paths(DEFAULTS)} - NEEDED))
def test_null_for_any_other_value_leaves_no_gap(helm, path):
    assert nulls(render(helm, without(path))) == []


def nulls(rendered: Any, where: str = "") -> list[str]:
    """Where they are."""
    if isinstance(rendered, dict | list):
        items = rendered.items() if isinstance(rendered, dict) else enumerate(rendered)
        return [found for key, each in items for found in nulls(each, f"{where}/{key}")]
    return [where] if rendered is None else []


def test_a_parent_chart_may_pass_global_values(helm):
    assert render(helm, {"global": {"registry": "example.com"}}) == render(helm, {})


def arguments(objects: list[dict[str, Any]]) -> list[str]:
    (container,) = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    found: list[str] = container["args"]
    return found
