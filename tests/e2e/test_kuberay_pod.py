"""KubeRay's operator in a pod: what of its own manifests is changed. Running it is e2e/scenarios'."""

import pytest
import yaml

from e2e.cluster.access import Access
from e2e.cluster.binaries import BINARIES
from e2e.nodes import kuberay
from e2e.nodes.images import KUBERAY


@pytest.fixture
def applied(monkeypatch):
    """Objects that would be applied, from KubeRay's manifests."""
    if not (BINARIES["kuberay-operator"].built and BINARIES["kubectl"].built):
        pytest.skip("KubeRay's manifests come with its operator, which make test builds")
    given, rendered = [], Access.kubectl

    def kubectl(access, *arguments, objects=""):
        if arguments[0] == "kustomize":
            return rendered(access, *arguments)
        given.extend(yaml.safe_load_all(objects))
        return ""

    monkeypatch.setattr(Access, "kubectl", kubectl)
    kuberay.install(Access())
    return given


def of_kind(applied, kind):
    return [each for each in applied if each["kind"] == kind]


def test_its_pod_has_our_image_and_the_container_that_faults_kill(applied):
    (deployment,) = of_kind(applied, "Deployment")
    template = deployment["spec"]["template"]
    (container,) = template["spec"]["containers"]

    assert (container["name"], container["image"]) == (kuberay.CONTAINER, KUBERAY)
    assert "cpu" not in container["resources"]["limits"]
    selector = kuberay.PODS[1].removeprefix("--selector=")
    assert selector in [f"{name}={value}" for name, value in template["metadata"]["labels"].items()]


def test_it_is_in_the_operators_namespace_with_all_that_it_may_do(applied):
    assert {each["metadata"].get("namespace") for each in of_kind(applied, "Deployment")} == {kuberay.NAMESPACE}
    for kind in ("ServiceAccount", "Service", "Role", "RoleBinding"):
        assert {each["metadata"]["namespace"] for each in of_kind(applied, kind)} == {kuberay.NAMESPACE}, kind

    bindings = of_kind(applied, "ClusterRoleBinding") + of_kind(applied, "RoleBinding")
    (account,) = of_kind(applied, "ServiceAccount")
    subjects = {(each["name"], each["namespace"]) for binding in bindings for each in binding["subjects"]}
    assert subjects == {(account["metadata"]["name"], kuberay.NAMESPACE)}


def test_its_namespace_admits_restricted_pods_only(applied):
    (namespace,) = of_kind(applied, "Namespace")

    assert namespace["metadata"] == {"name": kuberay.NAMESPACE, "labels": kuberay.RESTRICTED}
