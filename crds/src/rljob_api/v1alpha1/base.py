"""What all parts of the API share: camelCase names, closed objects, and rules across fields.

A rule is written once, in CEL. The API server evaluates it from the CRD, and `rljob validate` evaluates the same text
on the same object, so both accept and reject the same files. Rules use CEL's standard subset and `has()`. Every list,
map and string that a rule reads has a bound, because Kubernetes computes a rule's cost from the bounds.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict

from rljob_api.durations import DURATION_PATTERN


@dataclass(frozen=True)
class Rule:
    """One condition across the fields of an object.

    cel: an expression over `self`, the object that declares the rule; true if the object is valid.
    message: what is wrong, which field, and what to do.
    field: the camelCase path below `self` of the field to report ("rollout.topP"); "" is the object itself.
    """

    cel: str
    message: str
    field: str = ""


def sized(field: str) -> Rule:
    """A quantity of bytes above 0. It is a rule and not a pattern, so that stored objects stay readable."""
    size = "^([1-9][0-9]*([.][0-9]+)?|0+[.][0-9]*[1-9][0-9]*)(Mi?|Gi?|Ti?|Pi?)$|^[1-9][0-9]{6,}$"
    return Rule(
        f"!has(self.{field}) || self.{field}.matches('{size}')",
        f"{field} must be above 0 and have a unit of bytes: write 512Mi or 64Gi, for example",
        field,
    )


_UPWARDS = "(^|/)[.][.](/|$)"


def within_volume(field: str, named: str) -> Rule:
    """The rule of a field that holds a folder within a volume. named: the field's name in the message."""
    return Rule(
        f"!has(self.{field}) || !self.{field}.matches('^/|{_UPWARDS}')",
        f"{named} must be a folder within the volume: remove the leading '/' and every '..'",
        field,
    )


def straight(field: str, named: str) -> Rule:
    """The rule of a field whose path is compared with other paths, so it must not contain '..'."""
    return Rule(
        f"!self.{field}.matches('{_UPWARDS}')",
        f"{named} must not contain '..': write the path without it",
        field,
    )


class ApiModel(BaseModel):
    """An object of the API: camelCase in files, snake_case in Python, unknown fields rejected."""

    model_config = ConfigDict(
        alias_generator=lambda name: to_camel(name.rstrip("_")),  # lambda_ is a word of Python
        populate_by_name=True,
        extra="forbid",
        validate_default=True,
        frozen=True,
        strict=False,
    )
    rules: ClassVar[tuple[Rule, ...]] = ()


def list_map(key: str) -> JsonDict:
    """A list whose entries differ in `key`; Kubernetes merges it entry by entry."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
URL_PATTERN = r"^https?://[^/?#@ ]+(/[^?#@ ]*)?$"
REWARD_PATTERN = r"^[A-Za-z0-9_]([-A-Za-z0-9_]*[A-Za-z0-9_])?$"
OBJECT_NAME_PATTERN = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"
KEY_PATTERN = r"^[-._a-zA-Z0-9]+$"
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
TOOL_PATTERN = r"^[A-Za-z0-9_][-._A-Za-z0-9]*$"
PARSER_PATTERN = r"^[a-z0-9][-_a-z0-9]*$"
REASON_PATTERN = r"^[A-Z][A-Za-z0-9]*$"
MODULE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
RESOURCE_PATTERN = rf"^{_LABEL}(\.{_LABEL})*/[A-Za-z0-9]([-._A-Za-z0-9]{{0,61}}[A-Za-z0-9])?$"
MANAGER_PATTERN = rf"^{_LABEL}(\.{_LABEL})*/[-A-Za-z0-9/._~%!$&'()*+,;=:]+$"

QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$"

_ABOVE_0 = r"([0-9]{0,9}[1-9][0-9]{0,9}(\.[0-9]{1,9})?|[0-9]{0,9}\.[0-9]{0,9}[1-9][0-9]{0,9})"
_AT_MOST_1 = r"(0?\.[0-9]{0,9}[1-9][0-9]{0,9}|1(\.0{1,9})?)"
_FROM_1 = r"[1-9][0-9]{0,9}(\.[0-9]{1,9})?"
BOUND_PATTERN = rf"^({_ABOVE_0}|{_AT_MOST_1}_{_FROM_1})$"

PATTERN_MEANINGS = {
    DURATION_PATTERN: "a duration such as 90s, 1h30m or 500ms",
    NAME_PATTERN: "lowercase letters, digits and '-', with a letter or digit at both ends",
    URL_PATTERN: "a URL such as https://models.example.com, without user, query and fragment",
    REWARD_PATTERN: "letters, digits, '_' and '-', without '-' at the ends",
    OBJECT_NAME_PATTERN: "lowercase letters, digits, '-' and '.', with a letter or digit at both ends",
    KEY_PATTERN: "letters, digits, '-', '_' and '.'",
    VARIABLE_PATTERN: "letters, digits and '_', not beginning with a digit",
    TOOL_PATTERN: "letters, digits, '_', '-' and '.', beginning with a letter, a digit or '_'",
    PARSER_PATTERN: "lowercase letters, digits, '_' and '-', beginning with a letter or digit",
    REASON_PATTERN: "one CamelCase word",
    QUANTITY_PATTERN: "a Kubernetes quantity such as 500m, 8 or 64Gi, as text",
    RESOURCE_PATTERN: "a resource's name with its domain, such as nvidia.com/gpu",
    MANAGER_PATTERN: "a controller's name with its domain, such as example.com/controller",
    MODULE_PATTERN: "a Python module such as package.module",
    BOUND_PATTERN: 'a number above 0 as text, such as "2.0", or bounds of a ratio around 1, such as "0.5_5.0"',
}
"""What each pattern of the API accepts, for error messages."""

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN, min_length=1, max_length=63)]
"""A DNS label."""

ObjectName = Annotated[str, StringConstraints(pattern=OBJECT_NAME_PATTERN, min_length=1, max_length=253)]
"""Name of a Kubernetes object: a DNS subdomain."""

ResourceName = Annotated[str, StringConstraints(pattern=RESOURCE_PATTERN, min_length=3, max_length=256)]
"""Name of an extended resource, as device plugins register it."""

ManagerName = Annotated[str, StringConstraints(pattern=MANAGER_PATTERN, min_length=3, max_length=63)]
"""Name of a controller, as in managedBy of Kubernetes' Job."""

Quantity = Annotated[str, StringConstraints(pattern=QUANTITY_PATTERN, min_length=1, max_length=32)]

Path = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Duration = Annotated[str, StringConstraints(pattern=DURATION_PATTERN, min_length=2, max_length=32)]
"""A Go duration such as 90s, 1h30m or 500ms."""

Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
CountOrZero = Annotated[int, Field(ge=0, le=1_000_000_000)]
Seed = Annotated[int, Field(ge=0, le=2_147_483_647)]
