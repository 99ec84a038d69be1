"""Fields that the presets sft and dpo do not read, and the rules that reject them.

The API server fills in defaults before it evaluates rules. So a rule compares a field with its default: a field that is
written out with its default passes.
"""

from collections.abc import Iterator

from rljob_api.v1alpha1.base import ApiModel, Rule
from rljob_api.v1alpha1.rewards import Rewards
from rljob_api.v1alpha1.rollout import Rollout


def defaults_below(model: type[ApiModel], path: str) -> str:
    """CEL that is true if every field of the `model` at `path` has its default."""
    return " && ".join(_terms(model(), path))


def _terms(default: ApiModel, path: str) -> Iterator[str]:
    for name, field in type(default).model_fields.items():
        value, place = getattr(default, name), f"{path}.{field.alias}"
        if isinstance(value, ApiModel):
            yield from _terms(value, place)
        elif value is None:
            yield f"!has({place})"
        elif isinstance(value, list):
            yield f"{place}.size() == {len(value)}"
        elif isinstance(value, dict):
            continue  # CEL cannot read values of any type: the trainer rejects them
        elif isinstance(value, bool):
            yield place if value else f"!{place}"
        else:
            yield f"{place} == {value!r}"


_UNREAD = {
    "rollout": (defaults_below(Rollout, "self.rollout"), "generate no responses"),
    "environment": ("!has(self.environment)", "play no episodes"),
    "rewards": (defaults_below(Rewards, "self.rewards"), "score nothing"),
    "model.lora.merge": ("!has(self.model.lora) || !self.model.lora.merge", "send no weights to engines"),
    "actor.miniBatchSize": ("!has(self.actor.miniBatchSize)", "make one optimizer step of data.promptsPerStep rows"),
    "actor.epochs": ("self.actor.epochs == 1", "read each row of a step once"),
    "data.measuredDifficulty": ("!self.data.measuredDifficulty", "take rows in the order of data.shuffle"),
    "data.difficulty": ("!has(self.data.difficulty)", "take rows in the order of data.shuffle"),
    "data.validation": ("self.data.validation.size() == 0", "do not validate"),
    "training.validateBeforeTraining": ("self.training.validateBeforeTraining", "do not validate"),
    "checkpoint.keepBest": ("self.checkpoint.keepBest == 0", "have no reward to compare checkpoints by"),
}
"""By field: CEL that is true if the field is unset, and why these presets do not read it."""

UNREAD_OFFLINE = tuple(_UNREAD)


def unread_rules(supervised: str) -> tuple[Rule, ...]:
    """supervised: CEL that is true if the preset is one of these."""
    return tuple(
        Rule(
            f"!({supervised}) || ({alone})", f"presets sft and dpo {why}: remove {field}, or choose an RL preset", field
        )
        for field, (alone, why) in _UNREAD.items()
    )
