import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rljob_operator.plan import CHARGED
from rljob_operator.runtime.metrics import Metrics
from tests.rljob_operator.used_metrics import used_metrics

PAGE = Path(__file__).parents[2] / "docs/operator.md"


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """By name and the labels' values in the order of their names."""
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in families
        for sample in family.samples
    }


def test_what_its_parts_report_is_counted_and_an_error_goes_on() -> None:
    metrics, other = Metrics(), Metrics()
    for code, seconds in (("200", 0.02), ("200", 0.04), ("409", 0.06)):
        metrics.api_call("apply", "pods", code, seconds)
    with metrics.reconcile():
        pass
    with pytest.raises(LookupError), metrics.reconcile():
        raise LookupError
    metrics.restarted("NodeLost")
    metrics.queue_waited(0.3)
    told = samples(metrics)
    assert told["rljob_operator_api_requests_total", "200", "pods", "apply"] == 2
    assert told["rljob_operator_api_requests_total", "409", "pods", "apply"] == 1
    assert told["rljob_operator_api_request_seconds_sum", "pods", "apply"] == pytest.approx(0.12)
    assert told["rljob_operator_reconcile_seconds_count", "success"] == 1
    assert told["rljob_operator_reconcile_seconds_count", "LookupError"] == 1
    assert told["rljob_operator_restarts_total", "NodeLost"] == 1
    assert told["rljob_operator_queue_seconds_sum",] == pytest.approx(0.3)
    assert ("rljob_operator_restarts_total", "NodeLost") not in samples(other), "of this operator alone"


def test_every_reason_is_exposed_before_its_first_restart() -> None:
    """Or Prometheus' increase() does not see it."""
    told = {words: value for words, value in samples(Metrics()).items() if words[0] == "rljob_operator_restarts_total"}
    assert told == {("rljob_operator_restarts_total", reason): 0 for reason in CHARGED}
    assert {"RankLost", "DriverHung", "RayLost", "other"} < {*CHARGED}


def test_what_is_read_at_a_scrape_is_as_it_is_then_and_names_every_phase() -> None:
    metrics, state = Metrics(), dict[str, Any](jobs={}, depth=0, leader=False)
    metrics.read(
        jobs=lambda: state["jobs"], queue_depth=lambda: state["depth"], leader=lambda: state["leader"]
    )  # fmt: skip
    before = samples(metrics)
    state |= {"jobs": {"Running": 3}, "depth": 7, "leader": True}
    after = samples(metrics)
    for told, jobs, depth, leader in ((before, 0, 0, 0), (after, 3, 7, 1)):
        assert told["rljob_operator_jobs", "Running"] == jobs
        assert told["rljob_operator_jobs", "Failed"] == 0
        assert told["rljob_operator_queue_depth",] == depth
        assert told["rljob_operator_leader",] == leader


def test_the_page_lists_every_metric_with_its_labels_and_what_it_says():
    rows = []
    for family in text_string_to_metric_families(used_metrics().exposition().decode()):
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        name = f"{family.name}_total" if family.type == "counter" else family.name
        told = ", ".join(f"`{label}`" for label in labels)
        rows.append(f"| `{name}` | {family.type} | {told} | {family.documentation} |")
    own = sorted(row for row in rows if row.startswith("| `rljob_operator_") and "_created`" not in row)
    assert sorted(re.findall(r"^\| `rljob_operator_.*", PAGE.read_text(), re.MULTILINE)) == own, "\n".join(own)
