"""What may change in the spec of an existing job, as CEL rules over `self` and `oldSelf` for the API server.

At any time: suspend, preflight, recovery, activeDeadline, ttlAfterFinished, training.loggers, how often checkpoints are
saved and how many are kept, replicas of reward models (with a native gang upwards only), and
training.steps upwards. Never: the model, the volume and
managedBy. Everything else only while `suspend: true`. After the job has ended only ttlAfterFinished: the operator would
ignore any other change.
"""

from collections.abc import Mapping
from typing import Any

from rljob_api.v1alpha1.base import ApiModel, Rule
from rljob_api.v1alpha1.reward_models import RewardModel
from rljob_api.v1alpha1.rewards import Rewards

_SUSPENDED = "(self.suspend || oldSelf.suspend)"

_BLOCKS = ("data", "algorithm", "rollout", "actor", "cluster", "gang", "env")
_OPTIONAL = ("sft", "critic", "environment")
_LISTS = ("envFrom", "volumes", "volumeMounts", "imagePullSecrets")
_REWARDS = tuple(str(field.alias) for name, field in Rewards.model_fields.items() if name != "models")
_TRAINING = ("validateEvery", "validateBeforeTraining", "seed", "project", "onBadGradient")


_OPEN = ("cluster", "data", "environment", "envFrom", "rewards", "rollout", "template", "volumeMounts", "volumes")
"""Fields with parts of Kubernetes objects, which may have keys that the schema does not declare."""


def _equal(one: str, other: str) -> str:
    """CEL equality, in both directions where == may miss that a declared key or a null replaces another key."""
    both = f"{one} == {other}"
    return f"{both} && {other} == {one}" if one.rsplit(".", 1)[1] in _OPEN else both


def _same(field: str) -> str:
    return _equal(f"self.{field}", f"oldSelf.{field}")


def _same_optional(field: str) -> str:
    """`_same` for a field without a default."""
    return f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || {_same(field)})"


def _fields(model: type[ApiModel], *but: str) -> list[tuple[str, bool]]:
    """The fields of `model` except `but`, each with whether it always has a value."""
    return [
        (str(field.alias), field.is_required() or field.get_default(call_default_factory=True) is not None)
        for name, field in model.model_fields.items()
        if name not in but
    ]


def _same_models() -> str:
    """CEL that compares all fields of the reward models except replicas; a list map has no order."""
    same = " && ".join(
        _equal(f"m.{name}", f"o.{name}")
        if always
        else f"has(m.{name}) == has(o.{name}) && (!has(m.{name}) || {_equal(f'm.{name}', f'o.{name}')})"
        for name, always in _fields(RewardModel, "replicas")
    )
    models = "self.rewards.models"
    return (
        f"{models}.size() == oldSelf.rewards.models.size() && {models}.all(m, oldSelf.rewards.models.exists(o, {same}))"
    )


def _while_suspended(field: str, same: str) -> Rule:
    return Rule(f"{_SUSPENDED} || ({same})", f"{field} can change only while suspend is true: set suspend first", field)


TRANSITIONS = (
    Rule(_same("model"), "model cannot change: create another RLJob", "model"),
    Rule(_same("checkpoint.volume"), "checkpoint.volume cannot change: create another RLJob", "checkpoint.volume"),
    Rule(_same_optional("managedBy"), "managedBy cannot change: create another RLJob", "managedBy"),
    *(_while_suspended(field, _same(field)) for field in (*_BLOCKS, *_LISTS)),
    *(_while_suspended(f"rewards.{field}", _same(f"rewards.{field}")) for field in _REWARDS),
    _while_suspended("rewards.models", _same_models()),
    Rule(  # the PodGroup of Kubernetes is immutable: it would wait for the pods that are no longer made
        f"{_SUSPENDED} || self.gang.scheduler != 'native' || self.rewards.models.all(m,"
        " oldSelf.rewards.models.all(o, o.name != m.name || o.replicas <= m.replicas))",
        "replicas can decrease with gang.scheduler native only while suspend is true: set suspend first",
        "rewards.models",
    ),
    *(_while_suspended(block, _same_optional(block)) for block in _OPTIONAL),
    *(_while_suspended(f"training.{field}", _same(f"training.{field}")) for field in _TRAINING),
    _while_suspended("training.epochs", _same_optional("training.epochs")),
    _while_suspended("checkpoint.resume", _same("checkpoint.resume")),
    Rule(
        f"{_SUSPENDED} || (has(self.training.steps) == has(oldSelf.training.steps)"
        " && (!has(self.training.steps) || self.training.steps >= oldSelf.training.steps))",
        "training.steps can decrease, or be added or removed, only while suspend is true: set suspend first",
        "training.steps",
    ),
)


def once_ended(spec: type[ApiModel]) -> Rule:
    """The rule of the whole object, because it reads the status: the spec of an ended job is immutable."""
    same = " && ".join(
        f"({_same(f'spec.{name}') if always else _same_optional(f'spec.{name}')})"
        for name, always in _fields(spec, "ttl_after_finished")
    )
    phase = "oldSelf.status.phase"
    return Rule(
        f"!has(oldSelf.status) || !has({phase}) || !({phase} in ['Succeeded', 'Failed']) || ({same})",
        "the job has ended, so only spec.ttlAfterFinished can change: create another RLJob; to continue this run, set"
        " its checkpoint.resume to the path of a checkpoint of this job",
        "spec",
    )


_KEYS = {
    "containers": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "models": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Keys of list maps. A list map has no order, so the rules above ignore a different order."""


def fixed_while_running(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a spec, as JSON, that changes only while suspend is true: running objects depend on it."""
    return dict(_in_order(_fixed(spec)))


def _in_order(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _sorted(_in_order(each), _KEYS.get(name)) for name, each in value.items()}
    return [_in_order(each) for each in value] if isinstance(value, list) else value


def _sorted(value: Any, key: str | None) -> Any:
    if key is None or not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        return value
    return sorted(value, key=lambda each: str(each.get(key)))


def _fixed(spec: Mapping[str, Any]) -> dict[str, Any]:
    fixed = {field: spec[field] for field in (*_BLOCKS, *_OPTIONAL, *_LISTS) if field in spec}
    if rewards := dict(spec.get("rewards", {})):
        models = [{name: model[name] for name in model if name != "replicas"} for model in rewards.pop("models", ())]
        fixed["rewards"] = rewards | ({"models": models} if models else {})
    training, resume = spec.get("training", {}), spec.get("checkpoint", {}).get("resume")
    return (
        fixed | {field: training[field] for field in (*_TRAINING, "epochs") if field in training} | {"resume": resume}
    )
