"""docs/install.md says what the chart grants, and names values that exist."""

import re
from collections.abc import Iterable
from typing import Any

import yaml

from tests.charts.chart import CHART, NAME, ROOT, VALUES, of_kind, render

PAGE = (ROOT / "docs/install.md").read_text()

OPERATORS = (NAME, f"{NAME}-self", f"{NAME}-queues")

Row = tuple[str, str, tuple[str, ...]]
"""Resource with its group, the name of the only object, verbs."""


def said() -> set[Row]:
    rows = re.findall(r"^\| `([\w./-]+)`(?: `([\w-]+)`)? \| ([a-z, ]+) \|", PAGE, re.MULTILINE)
    return {(resource, name, tuple(sorted(verbs.split(", ")))) for resource, name, verbs in rows}


def granted(role: dict[str, Any]) -> Iterable[Row]:
    for rule in role["rules"]:
        (group,), (path,), (name,) = rule["apiGroups"], rule["resources"], rule.get("resourceNames", [""])
        resource, slash, subresource = path.partition("/")
        full = f"{resource}.{group}" if group else resource
        yield full + slash + subresource, name, tuple(sorted(rule["verbs"]))


def test_the_page_lists_the_operator_s_rights(helm):
    everything = of_kind(render(helm, {"kueue": {"enabled": True}, **VALUES["gangs"]}), "ClusterRole", "Role")
    roles = [each for each in everything if each["metadata"]["name"] in OPERATORS]

    assert said() == {row for role in roles for row in granted(role)}


def test_every_value_that_the_page_names_exists():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    tops = "|".join(values)
    named = set(re.findall(rf"\b(?:{tops})\.(?!md\b|sigs\b|x-)\w+", PAGE))  # no page or host

    assert len(named) > 8
    for path in named:
        top, field = path.split(".")
        assert field in values[top], path
