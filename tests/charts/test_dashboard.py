"""The Grafana dashboard asks for metrics that exist, by labels that the monitors give them."""

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from rljob_trainer.agent.prometheus import exposition, prometheus_name
from rljob_trainer.progress.names import METRICS
from rljob_trainer.progress.reporter import ProgressReporter
from rljob_trainer.volume import Volume
from tests.charts.chart import CHART
from tests.rljob_operator.used_metrics import used_metrics

FILE = CHART / "files/dashboard.json"


def expressions() -> list[str]:
    dashboard = json.loads(FILE.read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return asked + [each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]


def operators() -> set[str]:
    return samples(used_metrics().exposition())


def agents(folder: Path) -> set[str]:
    volume = Volume(folder)
    with ProgressReporter(volume) as progress:
        progress.begin(step=0, total_steps=1)
    return samples(exposition(volume)) | {prometheus_name(metric) for metric in METRICS.values()}


def samples(exposition: bytes) -> set[str]:
    return {each.name for family in text_string_to_metric_families(exposition.decode()) for each in family.samples}


def test_every_metric_of_the_dashboard_exists(tmp_path):
    asked = {name for expression in expressions() for name in re.findall(r"\brljob_\w+", expression)}

    assert len(asked) > 20
    assert asked - operators() - agents(tmp_path) == set()
