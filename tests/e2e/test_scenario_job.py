"""The job of the scenarios, as it is sent to a cluster, and what they ask of its policy and do to its driver."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from e2e.cluster.access import Access
from e2e.scenarios.job import Job
from e2e.scenarios.policy import OPERATOR, guarded, with_token
from e2e.scenarios.test_losses import nodes_for_pods
from rljob_operator.names import JOB_LABEL
from rljob_operator.render.protection import network_policy


def pod(name: str, job: str) -> dict[str, Any]:
    metadata = {"name": name, "labels": {JOB_LABEL: job}}
    spec = {"containers": [{"name": "any", "image": "any"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def test_a_policy_guards_its_jobs_pods_and_one_that_lets_others_in_is_told(cluster, namespace):
    job = Job(cluster, namespace)
    policy = network_policy(job.name, "rljob-system", None)

    def apply(*objects: dict[str, Any]) -> None:
        for each in objects:
            job.kubectl("apply", "--filename=-", objects=json.dumps(each))

    apply(policy, pod("head", job.name), pod("other", "another"))
    assert guarded(job) == {"pod/head"}

    ingress = policy["spec"]["ingress"]
    for looser in ({"ingress": [*ingress, {}]}, {"ingress": [ingress[0], {"from": [OPERATOR]}]}, {"ingress": [{}]}):
        apply(policy | {"spec": policy["spec"] | looser})
        with pytest.raises(AssertionError, match="others are let in"):
            guarded(job)
    apply(policy, policy | {"metadata": {"name": "second"}, "spec": policy["spec"] | {"ingress": [{}]}})
    with pytest.raises(ValueError, match="too many values"):
        guarded(job)


@dataclass(frozen=True)
class Pods(Access):
    """Two containers in each pod; of one the agent has a token."""

    def kubectl(self, *arguments: str, objects: str = "") -> str:
        match arguments[1:]:
            case ["get", _, "--output=jsonpath={.spec.containers[*].name}"]:
                return "ray-head agent"
            case ["exec", "pod/second", "--container=agent", *_]:
                return "serviceaccount"
            case _:
                return "ls: cannot access '/var/run/secrets/kubernetes.io': No such file or directory"


def test_a_token_is_found_in_any_container_of_a_pod():
    job = Job(Pods(), "somewhere")
    assert with_token(job, ["pod/first", "pod/second"]) == ["pod/second agent"]
    assert with_token(job, ["pod/first"]) == []


@dataclass(frozen=True)
class Nodes(Access):
    """One takes pods, one only where no other does, and two take none."""

    def kubectl(self, *_: str, objects: str = "") -> str:
        effects = ("PreferNoSchedule", "NoSchedule", "NoExecute")
        tainted = [{"taints": [{"key": "any", "effect": each}]} for each in effects]
        return json.dumps({"items": [{"spec": spec} for spec in ({}, *tainted)]})


def test_nodes_that_take_no_pods_are_not_counted():
    assert nodes_for_pods(Nodes()) == 2
