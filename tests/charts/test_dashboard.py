"""The Grafana dashboard asks for metrics that exist, by labels that the monitors give them or that are their own."""

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e.cluster.helm import Helm
from rljob_trainer.agent.prometheus import exposition, prometheus_name
from rljob_trainer.progress.names import METRICS
from rljob_trainer.progress.reporter import ProgressReporter
from rljob_trainer.volume import Volume
from tests.charts.chart import CHART, VALUES, only, render
from tests.rljob_operator.used_metrics import used_metrics

FILE = CHART / "files/dashboard.json"

EVERY_TARGETS = {"namespace"}
"""Of the labels that Prometheus' operator gives whatever a monitor finds."""

Labels = dict[str, set[str]]
"""By metric."""


def expressions() -> list[str]:
    """With their legends."""
    dashboard = json.loads(FILE.read_text())
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", ())]
    asked = [f"{target['expr']} {target.get('legendFormat', '')}" for target in targets]
    return asked + [each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]


@pytest.fixture
def known(helm: Helm, tmp_path: Path) -> Labels:
    """All metrics, with their labels as they come to Prometheus."""
    (endpoint,) = only(render(helm, VALUES["monitored"]), "PodMonitor")["spec"]["podMetricsEndpoints"]
    of_agents = EVERY_TARGETS | {each["targetLabel"] for each in endpoint["relabelings"]}
    operators, agents = samples(used_metrics().exposition()), agents_metrics(tmp_path)
    return {metric: own | EVERY_TARGETS for metric, own in operators.items()} | {
        metric: own | of_agents for metric, own in agents.items()
    }


def agents_metrics(folder: Path) -> Labels:
    volume = Volume(folder)
    with ProgressReporter(volume) as progress:
        progress.begin(step=0, total_steps=1)
    return {prometheus_name(metric): set() for metric in METRICS.values()} | samples(exposition(volume))


def samples(exposition: bytes) -> Labels:
    found = defaultdict[str, set[str]](set)
    for family in text_string_to_metric_families(exposition.decode()):
        for each in family.samples:
            found[each.name] |= each.labels.keys()
    return found


def metrics_of(expression: str) -> list[str]:
    return re.findall(r"\brljob_\w+", expression)


def labels_of(expression: str) -> set[str]:
    """In selectors, groupings, legends, and that whose values are asked for."""
    groups = re.findall(r"\b(?:by|without|on|ignoring|group_left|group_right) *\(([^)]*)\)", expression)
    found = re.findall(r'(\w+) *(?:=~|!~|!=|=) *"|\{\{ *(\w+) *\}\}|\blabel_values\(.*, *(\w+)\)', expression)
    return {label for each in (*groups, *map(" ".join, found)) for label in re.findall(r"\w+", each)}


def strange(expression: str, known: Labels) -> set[str]:
    """Labels of it that one of its metrics does not have."""
    return {label for metric in metrics_of(expression) for label in labels_of(expression) - known[metric]}


def test_every_metric_of_the_dashboard_exists(known):
    asked = {name for expression in expressions() for name in metrics_of(expression)}

    assert len(asked) > 20
    assert asked - known.keys() == set()


def test_every_label_of_the_dashboard_is_its_metric_s(known):
    assert {label for expression in expressions() for label in labels_of(expression)} > {"namespace", "rljob", "le"}
    assert {expression: labels for expression in expressions() if (labels := strange(expression, known))} == {}


@pytest.mark.parametrize(
    ("expression", "label"),
    [
        ('rljob_reward_mean{namespace=~"$namespace", job=~"$rljob"}', "job"),
        ("max by (phaze) (rljob_operator_jobs)", "phaze"),
        ("max(rljob_operator_jobs) {{reason}}", "reason"),
        ('rljob_operator_jobs{rljob="a"}', "rljob"),  # is of jobs' agents
        ('rljob_step{rljob="a"} / on (namespace, phase) rljob_total_steps', "phase"),
        ("sum by (le) (rate(rljob_operator_leader[5m]))", "le"),
        ('label_values(rljob_attempt{namespace=~"$namespace"}, job)', "job"),
    ],
)
def test_a_label_that_its_metric_does_not_have_is_found(known, expression, label):
    assert strange(expression, known) == {label}
