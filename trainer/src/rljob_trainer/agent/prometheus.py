"""The newest metrics and the progress in Prometheus' text format.

time/rollout   ->  rljob_time_rollout_seconds            units that Prometheus knows become the suffix
reward/exact   ->  rljob_reward_function{name="exact"}   names of rewards become a label

validation/reward/exact        ->  rljob_validation_function{data_source="", name="exact"}
validation/aime/reward         ->  rljob_validation_source_reward{data_source="aime"}
validation/aime/reward/exact   ->  rljob_validation_function{data_source="aime", name="exact"}
"""

import re
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from rljob_trainer.progress.history import Line, last_line
from rljob_trainer.progress.names import METRICS, Metric
from rljob_trainer.progress.state import last_attempt, read_object, silence
from rljob_trainer.volume import Volume

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SUFFIXES = {"seconds": "_seconds", "bytes": "_bytes", "tokens": "_tokens", "nats": "_nats", "share": "_ratio"}
_PROGRESS = (
    ("step", "rljob_step", "Last finished step"),
    ("totalSteps", "rljob_total_steps", "Steps of the whole run"),
)


def exposition(volume: Volume) -> bytes:
    """The current metrics; only the attempt's number if the run has no files yet."""
    registry = CollectorRegistry()
    registry.register(_Run(volume))
    return generate_latest(registry)


class _Run(Collector):
    def __init__(self, volume: Volume) -> None:
        self._volume = volume

    def collect(self) -> Iterator[GaugeMetricFamily]:
        attempt = last_attempt(self._volume)
        yield GaugeMetricFamily("rljob_attempt", "Number of the last driver start", value=attempt)
        progress = read_object(self._volume.progress) or {}
        for key, name, description in _PROGRESS:
            if isinstance(value := progress.get(key), int):
                yield GaugeMetricFamily(name, description, value=value)
        if (seconds := silence(self._volume)) is not None:
            yield GaugeMetricFamily(
                "rljob_driver_silence_seconds", "Time since the driver's last heartbeat", value=seconds
            )
        line = last_line(self._volume, attempt)
        yield from (_gauge(metric, line[name]) for name, metric in METRICS.items() if _is_number(line.get(name)))
        yield _rewards(line)
        yield from _validations(line)


def prometheus_name(metric: Metric) -> str:
    suffix = _SUFFIXES.get(metric.unit, "")
    return "rljob_" + metric.name.replace("/", "_").removesuffix(suffix) + suffix


def _gauge(metric: Metric, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(prometheus_name(metric), metric.description, value=value)


def _rewards(line: Line) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "rljob_reward_function", "Mean of one reward function, or of a number it logs", labels=["name"]
    )
    for name, value in line.items():
        if name.startswith("reward/") and name not in METRICS and _is_number(value):
            family.add_metric([name.removeprefix("reward/")], value)
    return family


_VALIDATION = re.compile(r"validation/(?:(?P<source>(?!reward/).+?)/)?reward(?:/(?P<name>.+))?")


def _validations(line: Line) -> Iterator[GaugeMetricFamily]:
    rewards = GaugeMetricFamily(
        "rljob_validation_source_reward", "Mean validation reward of one data source", labels=["data_source"]
    )
    functions = GaugeMetricFamily(
        "rljob_validation_function",
        "Mean of one reward function, or of a number it logs, in the last validation; of all data sources or of one",
        labels=["data_source", "name"],
    )
    for metric, value in line.items():
        found = _VALIDATION.fullmatch(metric)
        if found is None or metric in METRICS or not _is_number(value):
            continue
        source, name = found["source"] or "", found["name"]
        if name is None:
            rewards.add_metric([source], value)
        else:
            functions.add_metric([source, name], value)
    yield from (rewards, functions)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
