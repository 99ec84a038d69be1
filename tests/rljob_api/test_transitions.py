"""Which changes of a job that exists the CRD's rules let through."""

import copy
from typing import Any

import pytest

from rljob_api.schema import structural_schema, with_defaults
from rljob_api.v1alpha1 import Checkpoint, Rewards, RLJobSpec, Training
from tests.rljob_api import api_server

SPEC = with_defaults(
    structural_schema(RLJobSpec),
    {
        "model": {"path": "m"},
        "data": {"train": ["t"]},
        "rewards": {
            "functions": [{"name": "a", "builtin": "gsm8k"}],
            "models": [
                {"name": "rm", "path": "m", "kind": "classifier"},
                {
                    "name": "judge",
                    "path": "m",
                    "kind": "generative",
                    "promptTemplate": "{response}",
                    "scorePattern": "(.)",
                },
            ],
        },
        "training": {"steps": 10},
    },
)

MODELS = SPEC["rewards"]["models"]


def changed(path: str, value: Any, spec: Any = SPEC) -> Any:
    copied = copy.deepcopy(spec)
    *parents, last = path.split(".")
    node = copied
    for parent in parents:
        node = node[parent]
    node[last] = value
    return copied


def refused(old: Any, new: Any) -> list[str]:
    schema = api_server.root_schema()["properties"]["spec"]
    return api_server.refused_changes(schema, old, new)


AT_ANY_TIME = [
    ("suspend", True),
    ("recovery.maxRestarts", 50),
    ("recovery.forceDeleteLostPods", True),
    ("activeDeadline", "5h"),
    ("ttlAfterFinished", "5h"),
    ("training.loggers", ["console", "wandb"]),
    ("training.steps", 11),
    ("rewards.models", [MODELS[1], {**MODELS[0], "replicas": 9}]),
    ("checkpoint.everySteps", 3),
    ("checkpoint.keepLast", 9),
    ("checkpoint.keepEvery", 100),
    ("checkpoint.keepBest", 1),
]
WHILE_SUSPENDED = [
    ("data.promptsPerStep", 7),
    ("algorithm.preset", "rloo"),
    ("sft", {"steps": 5}),
    ("rollout.temperature", 0.5),
    ("actor.learningRate", 1e-5),
    ("rewards.functions", []),
    ("rewards.timeout", "1s"),
    ("rewards.processes", 1),
    ("rewards.onError", "drop_group"),
    ("rewards.models", []),
    ("rewards.models", [MODELS[0], {**MODELS[1], "name": "other"}]),
    ("rewards.models", [MODELS[0], {**MODELS[1], "promptTemplate": "{response}."}]),
    ("rewards.models", [MODELS[1], {**MODELS[0], "promptTemplate": "{response}"}]),
    ("rewards.models", [MODELS[1], {**MODELS[0], "gpusPerReplica": 2}]),
    ("rewards.models", [MODELS[1], {**MODELS[0], "arguments": ["--x"]}]),
    ("cluster.nodes", 2),
    ("env", [{"name": "A", "value": "b"}]),
    ("envFrom", [{"secretRef": {"name": "a"}}]),
    ("volumes", [{"name": "a"}]),
    ("volumeMounts", [{"name": "a"}]),
    ("imagePullSecrets", [{"name": "a"}]),
    ("training.validateEvery", 5),
    ("training.validateBeforeTraining", False),
    ("training.seed", 5),
    ("training.project", "other"),
    ("training.epochs", 3),
    ("training.steps", 9),
    ("checkpoint.resume", "never"),
]
NEVER = [("model.path", "n"), ("checkpoint.volume.size", "5Gi"), ("managedBy", "another")]

COVERED = {path for path, _ in AT_ANY_TIME + WHILE_SUSPENDED + NEVER}


@pytest.mark.parametrize(("path", "value"), AT_ANY_TIME)
def test_what_a_running_job_takes_over_may_change_at_any_time(path: str, value: Any) -> None:
    assert refused(SPEC, changed(path, value)) == []


@pytest.mark.parametrize(("path", "value"), WHILE_SUSPENDED)
def test_what_a_running_job_cannot_take_over_changes_while_it_is_suspended(path: str, value: Any) -> None:
    running, suspended = changed(path, value), changed("suspend", True)
    (message,) = refused(SPEC, running)
    assert "suspend is true" in message
    assert refused(suspended, changed("suspend", True, running)) == []
    assert refused(suspended, running) == [], "it may resume with the change"


@pytest.mark.parametrize(("path", "value"), NEVER)
def test_what_a_run_is_built_on_never_changes(path: str, value: Any) -> None:
    (message,) = refused(changed("suspend", True), changed("suspend", True, changed(path, value)))
    assert message.endswith("never changes: make another RLJob")


def test_every_field_of_the_spec_is_in_one_of_the_tables() -> None:
    blocks = {path.split(".")[0] for path in COVERED}
    assert blocks == {field.alias for field in RLJobSpec.model_fields.values()}
    for block, model in (("training", Training), ("checkpoint", Checkpoint), ("rewards", Rewards)):
        assert {f"{block}.{field.alias}" for field in model.model_fields.values()} == {
            path if path.count(".") < 2 else path.rsplit(".", 1)[0] for path in COVERED if path.startswith(block)
        }
