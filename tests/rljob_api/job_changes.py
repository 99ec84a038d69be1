"""Changes of a job that exists, by when the CRD's rules let them through."""

import copy
from typing import Any

from rljob_api.schema import structural_schema, with_defaults
from rljob_api.v1alpha1 import RLJobSpec

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


AT_ANY_TIME: list[tuple[str, Any]] = [
    ("suspend", True),
    ("recovery.maxRestarts", 50),
    ("preflight.fabric", {"minBusBandwidthGBps": 5, "timeLimit": "10s"}),
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
WHILE_SUSPENDED: list[tuple[str, Any]] = [
    ("data.promptsPerStep", 7),
    ("data.templateArguments", {"a": None}),
    ("algorithm.preset", "rloo"),
    ("algorithm.teacher", {"path": "t"}),
    ("sft", {"steps": 5}),
    ("critic", {"epochs": 2}),
    ("environment", {"path": "a.py", "arguments": {"a": None}}),
    ("rollout.temperature", 0.5),
    ("rollout.engineArguments", {"a": None}),
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
    ("gang.scheduler", "volcano"),
    ("env", [{"name": "A", "value": "b"}]),
    ("envFrom", [{"secretRef": {"name": "a"}}]),
    ("volumes", [{"name": "a"}]),
    ("volumeMounts", [{"name": "checkpoints", "mountPath": "/all"}]),
    ("imagePullSecrets", [{"name": "a"}]),
    ("training.validateEvery", 5),
    ("training.validateBeforeTraining", False),
    ("training.seed", 5),
    ("training.project", "other"),
    ("training.onBadGradient.maxSkips", 7),
    ("training.epochs", 3),
    ("training.steps", 9),
    ("checkpoint.resume", "never"),
]
NEVER: list[tuple[str, Any]] = [("model.path", "n"), ("checkpoint.volume.size", "5Gi"), ("managedBy", "a.b/c")]


def _pod(**spec: Any) -> dict[str, Any]:
    return {"template": {"spec": spec}}


def _containers(*names: str) -> dict[str, Any]:
    return _pod(containers=[{"name": name} for name in names])


REORDERED: list[tuple[str, Any, Any]] = [
    (path, entries, entries[::-1])
    for path, entries in (
        ("env", [{"name": "A", "value": "a"}, {"name": "B", "value": "b"}]),
        ("volumes", [{"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {}}]),
        ("imagePullSecrets", [{"name": "a"}, {"name": "b"}]),
        ("rewards.models", MODELS),
    )
] + [("cluster.worker", _containers("x", "y"), _containers("y", "x"))]
"""Lists whose entries have names have no order: the API server lets another one through, and nothing is made anew."""


def _volume(**source: Any) -> list[Any]:
    return [{"name": "d", **source}]


def _mount(**how: Any) -> list[Any]:
    return [{"name": "checkpoints", "mountPath": "/p", **how}]


def _function(**arguments: Any) -> list[Any]:
    return [{"name": "a", "builtin": "gsm8k", "arguments": arguments}]


def _metadata(**metadata: Any) -> dict[str, Any]:
    return {"template": {"metadata": metadata}}


REPLACED: list[tuple[str, Any, Any]] = [
    ("volumes", _volume(nfs={"server": "s", "path": "/p"}), _volume(persistentVolumeClaim={"claimName": "c"})),
    ("volumes", _volume(nfs={"server": "s", "path": "/p"}), _volume(nfs={"server": "t", "path": "/p"})),
    ("volumes", _volume(emptyDir={"medium": "Memory"}), _volume(emptyDir={"sizeLimit": "1Gi"})),
    ("volumes", _volume(nfs={"server": "s"}), _volume(unknown={"server": "s"})),
    ("volumeMounts", _mount(readOnly=True), _mount(mountPropagation="None")),
    ("volumeMounts", _mount(readOnly=True), _mount(unknown=True)),
    ("envFrom", [{"secretRef": {"name": "a", "optional": True}}], [{"secretRef": {"name": "a", "unknown": True}}]),
    ("cluster.worker", _pod(nodeSelector={"a": "b"}), _pod(priorityClassName="x")),
    ("cluster.worker", _pod(nodeSelector={"a": "b"}), _pod(nodeSelector={"c": "b"})),
    ("cluster.worker", _pod(nodeSelector=None), _pod(priorityClassName="x")),
    ("cluster.worker", _pod(priorityClassName="x"), _pod(nodeSelector=None)),
    ("cluster.worker", _pod(containers=[{"name": "x", "image": "i"}]), _pod(containers=[{"name": "x", "args": ["i"]}])),
    ("cluster.worker", _pod(tolerations=[{"key": "i"}]), _pod(tolerations=[{"operator": "i"}])),
    ("cluster.worker", _pod(tolerations=[{"key": None}]), _pod(tolerations=[{"operator": None}])),
    ("cluster.worker", _pod(hostAliases=[{"ip": "i"}]), _pod(hostAliases=[{"unknown": "i"}])),
    ("cluster.worker", _metadata(labels={"a": "b"}), _metadata(labels={"c": "b"})),
    ("cluster.worker", _metadata(annotations={"a": None}), _metadata(annotations={"c": None})),
    ("cluster.worker", _metadata(name="a"), _metadata(generateName="a")),
    ("rewards.models", [{**MODELS[0], **_pod(hostname="x")}], [{**MODELS[0], **_pod(subdomain=None)}]),
    ("rewards.functions", _function(b=1), _function(c=1)),
    ("rollout.engineArguments", {"b": 1}, {"c": 1}),
]
"""One key in place of another, in parts of Kubernetes' own objects: as much a change as another value of one key."""
