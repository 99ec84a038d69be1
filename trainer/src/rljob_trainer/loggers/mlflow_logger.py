"""MLflow. MLFLOW_TRACKING_URI names the server; the default is a database and artifacts in the run's directory.

Episodes are artifacts in the layout of its `log_table`, which itself needs pandas.
"""

import os
from collections.abc import Mapping
from typing import Any

from mlflow.entities import Metric, Param, Run
from mlflow.tracking import MlflowClient
from mlflow.utils.time import get_current_time_millis

from rljob_trainer.loggers.episodes import COLUMNS, EpisodeTable
from rljob_trainer.loggers.protocol import Status
from rljob_trainer.progress.run_info import RunInfo

UID_TAG = "rljob.uid"
_ENDED = {"done": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
_BATCH, _MAX_VALUE = 100, 500  # MLflow's limits: parameters per request, characters per value


class MlflowLogger:
    def start(self, run: RunInfo) -> None:
        server = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = MlflowClient(server or f"sqlite:///{run.directory / 'mlflow.db'}")
        found = self._client.get_experiment_by_name(run.project)
        artifacts = None if server else (run.directory / "mlflow-artifacts").absolute().as_uri()  # not where it runs
        experiment = found.experiment_id if found else self._client.create_experiment(run.project, artifacts)
        self._id = (self._earlier(experiment, run) or self._create(experiment, run)).info.run_id
        self._client.update_run(self._id, status="RUNNING")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        now = get_current_time_millis()
        self._client.log_batch(self._id, metrics=[Metric(name, value, now, step) for name, value in metrics.items()])

    def episodes(self, table: EpisodeTable) -> None:
        content = {"columns": list(COLUMNS), "data": [list(row) for row in table.rows]}
        self._client.log_dict(self._id, content, f"episodes/step-{table.step}.json")

    def finish(self, status: Status) -> None:
        self._client.set_terminated(self._id, _ENDED[status])

    def _earlier(self, experiment: str, run: RunInfo) -> Run | None:
        found = self._client.search_runs([experiment], f"tags.`{UID_TAG}` = '{run.uid}'", max_results=1)
        return found[0] if found else None

    def _create(self, experiment: str, run: RunInfo) -> Run:
        created = self._client.create_run(experiment, run_name=run.name, tags={UID_TAG: run.uid})
        params = [Param(key, str(value)[:_MAX_VALUE]) for key, value in _flatten(run.config).items()]
        for first in range(0, len(params), _BATCH):
            self._client.log_batch(created.info.run_id, params=params[first : first + _BATCH])
        return created


def _flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} as {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flatten(item, f"{prefix}{key}.") if isinstance(item, Mapping) else {f"{prefix}{key}": item}
    return flat
