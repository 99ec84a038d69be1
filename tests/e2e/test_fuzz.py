"""Some of `make fuzz`: malformed RLJobs are refused or failed with the name of a field, or are good for everybody."""

import copy
import json
from collections import Counter
from pathlib import Path

import pytest
from kubernetes.client import ApiClient

from e2e.cluster.access import Access
from e2e.fuzz import verdicts
from e2e.fuzz.mutations import Mutant, mutants
from e2e.fuzz.reconciling import reconciler
from e2e.fuzz.seeds import seeds
from e2e.fuzz.theirs import names_their_field
from e2e.fuzz.verdicts import judge
from rljob_api.validation import Problem, Validated

FAILED, WAITS = "failed with a message that names a field of theirs", "waits for what is missing"


@pytest.mark.parametrize(("count", "failed"), [(40, 0), pytest.param(500, 1, marks=pytest.mark.slow)])
def test_each_is_refused_with_the_name_of_a_field_or_good_for_everybody(
    cluster: Access, client: ApiClient, tmp_path: Path, count: int, failed: int
) -> None:
    """failed: so many at least are good for the API server and not for Kubernetes."""
    verdicts = [(mutant, judge(client, mutant.document)) for mutant in mutants(seeds(), count, 7)]

    assert {str(mutant): verdict.findings for mutant, verdict in verdicts if verdict.findings} == {}
    admitted = [mutant for mutant, verdict in verdicts if verdict.admitted]
    assert count / 20 < len(admitted) < count / 2, "else it says nothing of one side"
    with reconciler(cluster, client, tmp_path) as operator:
        outcomes = list(operator.outcomes(admitted))
    assert {str(outcome.mutant): outcome.findings for outcome in outcomes if outcome.findings} == {}
    fates = Counter[str](outcome.fate for outcome in outcomes)
    assert failed <= fates[FAILED] < fates["reconciled"] / 10, f"else it says nothing of one side: {fates}"


@pytest.mark.slow
def test_what_is_broken_there_was_good_for_the_operator_too(cluster: Access, client: ApiClient, tmp_path: Path) -> None:
    whole = [Mutant(number, (), seed) for number, seed in enumerate(seeds())]
    with reconciler(cluster, client, tmp_path) as operator:
        outcomes = list(operator.outcomes(whole))
    good = ("reconciled", WAITS, "not ours")
    assert {json.dumps(each.mutant.document): each for each in outcomes if each.fate not in good} == {}


@pytest.mark.slow
def test_a_job_that_names_what_is_not_there_waits_and_says_so(
    cluster: Access, client: ApiClient, tmp_path: Path
) -> None:
    lacking = copy.deepcopy(seeds()[0])
    lacking["spec"]["cluster"] = {**lacking["spec"].get("cluster", {}), "priorityClassName": "nobody-has-it"}
    with reconciler(cluster, client, tmp_path) as operator:
        (outcome,) = operator.outcomes([Mutant(0, (), lacking)])
    assert (outcome.fate, outcome.findings) == (WAITS, ())


@pytest.mark.parametrize("metadata", [[], "x", 7, True])
def test_a_go_type_is_enough_only_where_our_own_validation_names_the_field(
    client: ApiClient, monkeypatch: pytest.MonkeyPatch, metadata: object
) -> None:
    document = {**seeds()[0], "metadata": metadata}
    assert judge(client, document).findings == ()

    monkeypatch.setattr(verdicts, "validate", lambda _, source: Validated((), (Problem(source, 1, 1, "spec", "no"),)))
    (finding,) = judge(client, document).findings
    assert finding.startswith("the API server refuses it without a field's name: ")


POD = {
    "spec": {
        "nodeSelector": {"pool": "a"},
        "containers": [{"name": "side"}, {"name": "x", "env": [{"name": "A"}]}],
        "hostAliases": [{"ip": {}}],
    }
}
JOB = {
    "spec": {
        "cluster": {"worker": {"template": POD}},
        "rewards": {"models": [{"name": "rm", "template": POD}]},
        "volumes": [{"name": "data"}],
    }
}
RM = "spec.rewards.models[0].template"


@pytest.mark.parametrize(
    ("message", "theirs"),
    [
        (f'Deployment.apps "j-rm-rm" is invalid: {RM}.spec.containers[1].image: Required value', True),
        (f"{RM}.spec.containers[2].image: Required value", False),  # no such entry
        (f"{RM}.spec.containers[1].env[0].name: Invalid", True),
        (f"{RM}.spec.containers[1].env[1].name: Invalid", False),
        (f'{RM}.spec.containers[name="side"].imagee: field not declared in schema', True),
        (f'{RM}.spec.containers[name="other"].imagee: field not declared in schema', False),
        (f"{RM}.spec.hostAliases[ip=].ip: expected string", True),
        (f"{RM}.spec.containers[name=].image: expected string", False),  # each has one
        (f"{RM}.spec.containers[x].volumeMounts: /job is that of the operator's volume job", True),
        (f"{RM}.spec.nodeSelector[pool]: Invalid value", True),
        ("spec.rewards.models[1].template.spec: Invalid", False),
        ("spec.cluster.head.template.spec.tolerationz: field not declared in schema", True),
        ("spec.cluster.head.template.spec.containers[0].image: Required value", False),  # nothing is written there
        ("spec.volumes[0].name: Duplicate value", True),
        ("the pod's spec.volumes[0].name: Duplicate value", False),
        ("spec.activeDeadline of 1s has passed", True),
        ("spec.template.spec.containers[2].image: Required value", False),  # a Deployment's
        ("spec.workerGroupSpecs[0].template.spec.volumes[3].name: Required value", False),
        ("spec.containers[0].image: Required value", False),  # a pod's
        ("metadata.labels: Invalid value", False),
        (f"spec.template.spec.x: Forbidden. Check {RM}", True),
        (f'{RM}.spec.containers[0].image: Invalid value: "spec.template.spec"', True),
        ('x: Invalid value: "spec.volumes[0]"', False),
        ("exceeded quota", False),
    ],
)  # fmt: skip
def test_a_field_is_theirs_where_the_job_has_it(message: str, theirs: bool) -> None:
    assert names_their_field(message, JOB) == theirs
