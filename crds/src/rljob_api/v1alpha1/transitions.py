"""What may change in the spec of a job that exists. CEL over `self` and `oldSelf`, so the API server judges updates.

At any time: suspend, recovery, activeDeadline, ttlAfterFinished, training.loggers, how often checkpoints are saved and
how many are kept, replicas of reward models, and training.steps upwards. Never: the model and the volume. All else
while `suspend: true`. Of a job that has ended nothing but ttlAfterFinished: whatever else it said would be ignored.
"""

from collections.abc import Mapping
from typing import Any

from rljob_api.v1alpha1.base import ApiModel, Rule
from rljob_api.v1alpha1.reward_models import RewardModel
from rljob_api.v1alpha1.rewards import Rewards

_SUSPENDED = "(self.suspend || oldSelf.suspend)"

_BLOCKS = ("data", "algorithm", "rollout", "actor", "cluster", "env")
_LISTS = ("envFrom", "volumes", "volumeMounts", "imagePullSecrets")
_REWARDS = tuple(str(field.alias) for name, field in Rewards.model_fields.items() if name != "models")
_TRAINING = ("validateEvery", "validateBeforeTraining", "seed", "project")


_OPEN = ("cluster", "envFrom", "rewards", "template", "volumeMounts", "volumes")
"""Those with parts of Kubernetes' own objects, which may have keys that the schema does not declare."""


def _equal(one: str, other: str) -> str:
    """Where a key that the schema declares, or a null, takes another key's place, == may see it from one side only."""
    both = f"{one} == {other}"
    return f"{both} && {other} == {one}" if one.rsplit(".", 1)[1] in _OPEN else both


def _same(field: str) -> str:
    return _equal(f"self.{field}", f"oldSelf.{field}")


def _same_optional(field: str) -> str:
    """For a field without a default."""
    return f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || {_same(field)})"


def _fields(model: type[ApiModel], *but: str) -> list[tuple[str, bool]]:
    """Each with whether it always has a value."""
    return [
        (str(field.alias), field.is_required() or field.get_default(call_default_factory=True) is not None)
        for name, field in model.model_fields.items()
        if name not in but
    ]


def _same_models() -> str:
    """All but their replicas; a list map has no order."""
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
    return Rule(f"{_SUSPENDED} || ({same})", f"{field} can change only while suspend is true: set that first", field)


TRANSITIONS = (
    Rule(_same("model"), "model never changes: make another RLJob", "model"),
    Rule(_same("checkpoint.volume"), "checkpoint.volume never changes: make another RLJob", "checkpoint.volume"),
    Rule(_same_optional("managedBy"), "managedBy never changes: make another RLJob", "managedBy"),
    *(_while_suspended(field, _same(field)) for field in (*_BLOCKS, *_LISTS)),
    *(_while_suspended(f"rewards.{field}", _same(f"rewards.{field}")) for field in _REWARDS),
    _while_suspended("rewards.models", _same_models()),
    _while_suspended("sft", _same_optional("sft")),
    *(_while_suspended(f"training.{field}", _same(f"training.{field}")) for field in _TRAINING),
    _while_suspended("training.epochs", _same_optional("training.epochs")),
    _while_suspended("checkpoint.resume", _same("checkpoint.resume")),
    Rule(
        f"{_SUSPENDED} || self.training.steps >= oldSelf.training.steps",
        "training.steps can only grow unless suspend is true: set that first",
        "training.steps",
    ),
)


def once_ended(spec: type[ApiModel]) -> Rule:
    """Of the whole object, which has the status."""
    same = " && ".join(
        f"({_same(f'spec.{name}') if always else _same_optional(f'spec.{name}')})"
        for name, always in _fields(spec, "ttl_after_finished")
    )
    phase = "oldSelf.status.phase"
    return Rule(
        f"!has(oldSelf.status) || !has({phase}) || !({phase} in ['Succeeded', 'Failed']) || ({same})",
        "this job has ended, so nothing of it can change but spec.ttlAfterFinished: make another RLJob, whose"
        " checkpoint.resume may be the path of one of this one's checkpoints",
        "spec",
    )


_KEYS = {
    "containers": "name",
    "env": "name",
    "functions": "name",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "models": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Of list maps, which have no order: another one is no change by the rules above."""


def fixed_while_running(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What of a spec, as JSON, changes only while suspend is true: what runs was made for it."""
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
    fixed = {field: spec[field] for field in (*_BLOCKS, *_LISTS, "sft") if field in spec}
    if rewards := dict(spec.get("rewards", {})):
        models = [{name: model[name] for name in model if name != "replicas"} for model in rewards.pop("models", ())]
        fixed["rewards"] = rewards | ({"models": models} if models else {})
    training, resume = spec.get("training", {}), spec.get("checkpoint", {}).get("resume")
    return (
        fixed | {field: training[field] for field in (*_TRAINING, "epochs") if field in training} | {"resume": resume}
    )
