"""The models as a structural schema, which Kubernetes requires of a CRD.

Structural means: no $ref, no anyOf, oneOf or allOf, and a type at every node. This module inlines and flattens what
pydantic writes differently: `X | None` becomes an optional X, and a default factory becomes its value.
https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema
"""

import inspect
from copy import deepcopy
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema, to_jsonable_python

from rljob_api.v1alpha1.base import ApiModel

Schema = dict[str, Any]

RULES = "x-kubernetes-validations"
FREE_FORM = "x-kubernetes-preserve-unknown-fields"

UNJUDGED: Schema = {FREE_FORM: True, "nullable": True}
"""Schema of a key that accepts any value. It is declared so that changes are detected: see v1alpha1/pod_keys.py.

The API server keeps a null here, which in a pod template removes a value; it drops a null of any other field.
"""


@cache
def structural_schema(model: type[ApiModel]) -> Schema:
    """The schema of `model`, named by its aliases, with the defaults and CEL rules of every model in it."""
    schema = model.model_json_schema(schema_generator=_Structural)
    inlined: Schema = _inlined(schema, schema.get("$defs", {}))
    return inlined


def with_defaults(schema: Schema, value: Any) -> Any:
    """A copy of `value` as the API server validates it: without nulls, and with the defaults of absent fields.

    A null at an unknown field stays, so that it is rejected.
    """
    if isinstance(value, dict) and "properties" in schema:
        fields = schema["properties"]
        written = {
            key: item for key, item in value.items() if item is not None or fields.get(key, UNJUDGED) == UNJUDGED
        }
        for key, field in fields.items():
            if key not in written and "default" in field:
                written[key] = deepcopy(field["default"])
        return {key: with_defaults(fields.get(key, {}), item) for key, item in written.items()}
    if isinstance(value, list):
        return [with_defaults(schema.get("items", {}), item) for item in value]
    return deepcopy(value)


class _Structural(GenerateJsonSchema):
    """pydantic's generator with Kubernetes' dialect of JSON Schema."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        return {"type": "string", "enum": list(schema["expected"])}

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        return _bounds(super().int_schema(schema))

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return _bounds(super().float_schema(schema))

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        written = super().dict_schema(schema)
        if written.get("additionalProperties") is True:
            written |= {FREE_FORM: True, "additionalProperties": UNJUDGED}
        return written

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        written = self.generate_inner(schema["schema"])
        if schema.get("default_factory_takes_data"):  # it depends on other fields, so the API server cannot fill it in
            return written
        default = schema["default_factory"]() if "default_factory" in schema else schema.get("default")  # type: ignore[call-arg]
        return written if default is None else written | {"default": _written_out(default)}

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        model = schema["cls"]
        written = super().model_schema(schema)
        written["description"] = inspect.cleandoc(model.__doc__ or "")
        if written.pop("additionalProperties", False):
            written[FREE_FORM] = True
            written["properties"] |= dict.fromkeys(getattr(model, "others", ()), UNJUDGED)
        if rules := getattr(model, "rules", ()):
            written[RULES] = [
                {"rule": rule.cel, "message": rule.message} | ({"fieldPath": f".{rule.field}"} if rule.field else {})
                for rule in rules
            ]
        return written


def judges_updates(rule: Schema) -> bool:
    """Whether a rule compares an object with its previous state."""
    return "oldSelf" in rule["rule"]


def _written_out(default: Any) -> Any:
    """A default including nested defaults, because the API server validates each default as it is written."""
    if isinstance(default, BaseModel):
        return default.model_dump(mode="json", by_alias=True, exclude_none=True)
    return to_jsonable_python(default)


def _bounds(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Write JSON Schema's `exclusiveMinimum: 0` as OpenAPI 3.0's `minimum: 0, exclusiveMinimum: true`."""
    for bound in ("Minimum", "Maximum"):
        if (limit := schema.pop(f"exclusive{bound}", None)) is not None:
            schema |= {bound.lower(): limit, f"exclusive{bound}": True}
    return schema


def _inlined(node: Any, definitions: dict[str, Schema]) -> Any:
    """`node` with every $ref replaced by its definition; keys beside a $ref take precedence."""
    if isinstance(node, list):
        return [_inlined(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        named = definitions[node["$ref"].rsplit("/", 1)[1]]
        node = named | {key: item for key, item in node.items() if key != "$ref"}
        node["description"] = _described(node["description"], named["description"])
    return {key: _inlined(item, definitions) for key, item in node.items() if not _dropped(key, item)}


def _described(field: str, model: str) -> str:
    """The field's description, then the model's docstring without its first paragraph."""
    more = model.partition("\n\n")[2]
    return f"{field}\n\n{more}" if more and field != model else field


def _dropped(key: str, item: Any) -> bool:
    """Titles repeat names, definitions are inlined, and Kubernetes rejects unknown fields by itself."""
    return key == "$defs" or (key == "title" and isinstance(item, str)) or (key == "additionalProperties" and not item)
