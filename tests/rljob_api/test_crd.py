"""The generated files are up to date, and the CRD is what Kubernetes accepts."""

from pathlib import Path

import pytest
from kubernetes import client

from rljob_api import conditions_reference, crd, reference
from rljob_api.schema import UNJUDGED, structural_schema, with_defaults
from rljob_api.v1alpha1 import RLJobSpec, pods
from rljob_api.v1alpha1.algorithm import GOVERNED
from rljob_api.v1alpha1.base import PATTERN_MEANINGS
from rljob_api.v1alpha1.status import EXACT
from rljob_api.validation import validate
from tests.rljob_api import api_server
from tests.rljob_api.job_files import GOOD

REPOSITORY = Path(__file__).parents[2]


def nodes(schema=None, path=""):
    """Every node of the CRD's schema that the project declares, with its path; not keys of which nothing is judged."""
    schema = schema or api_server.root_schema()
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        if (path or name in {"spec", "status"}) and field != UNJUDGED:
            yield from nodes(field, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


NODES = dict(nodes())


@pytest.mark.parametrize(
    ("file", "render"), [(page.FILE, page.render) for page in (crd, reference, conditions_reference)]
)
def test_a_generated_file_is_up_to_date(file, render):
    assert (REPOSITORY / file).read_text() == render(), f"{file} is old: run make generate"


def test_the_schema_is_structural():
    forbidden = {"$ref", "$defs", "anyOf", "oneOf", "allOf", "not", "const", "title", "nullable", "exclusiveMinimum "}
    for path, node in NODES.items():
        assert not forbidden & set(node), path
        assert node["type"] in {"object", "array", "string", "integer", "number", "boolean"}, path
        assert isinstance(node.get("exclusiveMinimum", True), bool), path
        assert not ("properties" in node and "additionalProperties" in node), path
        assert node["type"] != "array" or "items" in node, path


@pytest.mark.parametrize(
    ("part", "theirs"),
    [
        (pods.PodTemplate, client.V1PodTemplateSpec),
        (pods.PodMetadata, client.V1ObjectMeta),
        (pods.PodSpec, client.V1PodSpec),
        (pods.Container, client.V1Container),
        (pods.Volume, client.V1Volume),
        (pods.VolumeMount, client.V1VolumeMount),
        (pods.EnvSource, client.V1ConfigMapEnvSource),
        (pods.EnvSource, client.V1SecretEnvSource),
    ],
)
def test_every_key_of_kubernetes_own_objects_is_declared(part, theirs):
    """As far as its Python client knows them."""
    assert set(theirs.attribute_map.values()) <= set(structural_schema(part)["properties"])


def test_what_has_no_known_keys_is_compared_key_by_key():
    """An object without both properties and additionalProperties is not: see v1alpha1/pod_keys.py."""
    free = [node for node in NODES.values() if node["type"] == "object" and "properties" not in node]
    assert free
    assert all("type" in node["additionalProperties"] or node["additionalProperties"] == UNJUDGED for node in free)


def test_every_field_has_a_description():
    """But the plain items of lists, which their list describes."""
    missing = [path for path, node in NODES.items() if not path.endswith("[]") and not node.get("description")]
    assert missing == []


def test_every_list_string_and_map_is_bounded():
    """Kubernetes prices a rule by the largest object that the schema allows."""
    bound = {"array": "maxItems", "string": "maxLength", "object": "properties", "integer": "type", "number": "type"}
    for path, node in NODES.items():
        fixed = "enum" in node or node.get("format") == "date-time" or "maxProperties" in node
        assert fixed or node["type"] == "boolean" or bound[node["type"]] in node, path


def test_every_number_of_the_spec_is_bounded():
    numbers = {path: node for path, node in NODES.items() if node["type"] in {"integer", "number"}}
    unbounded = [path for path, node in numbers.items() if path.startswith(".spec") and "maximum" not in node]
    assert unbounded == []


def test_every_integer_that_a_head_tells_is_bounded():
    """Beyond 64 bits the API server refuses the whole status."""
    told = {
        path: node for path, node in NODES.items()
        if path.startswith((".status.progress.", ".status.checkpoint.")) and node["type"] == "integer"
    }  # fmt: skip
    assert len(told) == 4
    assert {node["maximum"] for node in told.values()} == {EXACT}


def test_patterns_are_anchored_ascii_and_explained():
    patterns = {node["pattern"] for node in NODES.values() if "pattern" in node}
    assert patterns == set(PATTERN_MEANINGS) & patterns
    for pattern in patterns:
        assert pattern.startswith("^")
        assert pattern.endswith("$")
        assert "\\w" not in pattern, "RE2's is ASCII and Python's is not"
        assert "\\d" not in pattern, "RE2's is ASCII and Python's is not"


def test_a_default_satisfies_its_own_field():
    """The API server refuses a CRD whose default, as it is written, breaks the schema or a rule below it."""
    for path, node in NODES.items():
        if "default" in node and node["type"] == "object":
            assert with_defaults(node, node["default"]) == node["default"], path
            assert api_server.broken_rules(node, node["default"]) == [], path


def test_preset_fields_have_no_default():
    for field in GOVERNED:
        assert "default" not in NODES[f".spec.algorithm.{field}"], field


def test_a_rule_points_at_a_field_that_exists():
    for path, node in NODES.items():
        for rule in node.get("x-kubernetes-validations", ()):
            assert not path or f"{path}{rule['fieldPath']}" in NODES, rule["message"]
            assert "\n" not in rule["message"]
            assert len(rule["message"]) <= 2048


TEMPLATES = (".spec.cluster.head.template", ".spec.cluster.worker.template", ".spec.rewards.models[].template")
NAMED = ("containers", "initContainers", "volumes")


def test_lists_of_named_things_are_merged_by_name():
    keys = {
        path: node["x-kubernetes-list-map-keys"] for path, node in NODES.items() if "x-kubernetes-list-map-keys" in node
    }
    assert keys == {
        ".spec.rewards.models": ["name"],
        ".spec.rewards.models[].env": ["name"],
        ".spec.environment.builtinTools": ["name"],
        ".spec.environment.mcpServers": ["name"],
        ".status.rewardModels": ["name"],
        ".status.excludedNodes": ["name"],
        ".spec.env": ["name"],
        ".spec.imagePullSecrets": ["name"],
        ".spec.volumes": ["name"],
        ".spec.volumeMounts": ["mountPath"],
        **{f"{template}.spec.{entries}": ["name"] for template in TEMPLATES for entries in NAMED},
        ".status.conditions": ["type"],
    }
    for path, (key,) in keys.items():
        assert key in NODES[f"{path}[]"]["required"]


def test_kubectl_shows_how_far_a_job_is():
    spec = api_server.crd()["spec"]
    (version,) = spec["versions"]
    columns = {column["name"]: column["jsonPath"] for column in version["additionalPrinterColumns"]}
    assert list(columns) == ["Phase", "Step", "Reward", "Queue", "GPUs", "Restarts", "Age"]
    assert all(path in NODES or path == ".metadata.creationTimestamp" for path in columns.values())
    assert (spec["names"]["shortNames"], spec["names"]["categories"], spec["scope"]) == (["rlj"], ["all"], "Namespaced")
    assert version["subresources"] == {"status": {}}


@pytest.mark.parametrize("row", GOOD, ids=lambda row: row.name)
def test_the_crd_and_the_models_have_the_same_defaults(row):
    """So a job means the same in a cluster, which defaults by the CRD, and on a laptop."""
    (job,) = validate(row.text, "job.yaml").jobs
    schema = NODES[".spec"]
    sparse = job.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    filled = job.spec.model_dump(mode="json", by_alias=True)
    assert with_defaults(schema, sparse) == with_defaults(schema, filled)
    assert RLJobSpec.model_validate(with_defaults(schema, sparse)) == job.spec


def test_the_schema_of_the_models_is_the_crd_s():
    assert structural_schema(RLJobSpec)["properties"] == NODES[".spec"]["properties"]
