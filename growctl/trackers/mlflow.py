"""MLflow: an experiment per ladder, with the ladder and its controls as runs.

A SQLite store, unless MLFLOW_TRACKING_URI names a server. Its x axis is one whole number, so each value is written once
per axis.
"""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from growctl.runs_dir import RunPaths
from growctl.trackers.protocol import Place, Status, TrackedRun
from growctl.trackers.tables import figures, markdown, schedule_yaml

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from mlflow import MlflowClient  # after its variable
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

MOST_METRICS, MOST_PARAMS, LONGEST_PARAM = 1000, 100, 6000
"""What MLflow accepts in one batch, and in one value."""

STATUSES = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class MLflow:
    """An MLflow run."""

    def __init__(self, run: TrackedRun, store: Path, known: str | None) -> None:
        server = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = MlflowClient(tracking_uri=server or f"sqlite:///{store / 'mlflow.db'}")
        self._waiting: list[Metric] = []
        if known and self._continues(known):
            self.id = known
            return
        experiment = self._experiment(run.group, None if server else (store / "artifacts").as_uri())
        tags = {"growctl.kind": run.kind, "growctl.group": run.group}
        self.id = self._client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
        params = [Param(name, str(value)[:LONGEST_PARAM]) for name, value in _flat(run.schedule)]
        for first in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self.id, params=params[first : first + MOST_PARAMS])
        self._client.log_text(self.id, schedule_yaml(run), RunPaths(Path()).schedule.name)

    def _continues(self, known: str) -> bool:
        """Whether the run of an earlier start is still there; it then goes on."""
        try:
            self._client.update_run(known, status="RUNNING")
        except MlflowException:
            return False
        return True

    def _experiment(self, name: str, artifacts: str | None) -> str:
        if found := self._client.get_experiment_by_name(name):
            return str(found.experiment_id)
        return str(self._client.create_experiment(name, artifact_location=artifacts))

    def log(self, place: Place, values: Mapping[str, float]) -> None:
        """Takes each value once per axis."""
        now = int(time.time() * 1000)
        for prefix, x in place.on_axes().items():
            self._waiting += [Metric(prefix + name, value, now, x) for name, value in values.items()]

    def mark(self, place: Place, event: str, text: str, values: Mapping[str, float]) -> None:
        """Sets a tag with the event's text, and takes its values."""
        self._client.log_batch(self.id, tags=[RunTag(f"growctl.{event}.{place.stage}.{place.step}", text)])
        self.log(place, {f"{event}/{name}": value for name, value in values.items()})

    def flush(self) -> None:
        """Writes what was taken in."""
        while self._waiting:
            self._client.log_batch(self.id, metrics=self._waiting[:MOST_METRICS])
            del self._waiting[:MOST_METRICS]

    def finish(self, status: Status, table: list[dict[str, str]]) -> None:
        """Writes the report's table as an artifact, and its figures as metrics."""
        now = int(time.time() * 1000)
        self._waiting += [Metric(name, value, now, 0) for name, value in figures(table).items()]
        self.flush()
        if table:
            self._client.log_text(self.id, markdown(table) + "\n", "report.md")
        self._client.set_terminated(self.id, STATUSES[status])


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a schedule by dotted path."""
    if isinstance(value, dict | list):
        for key, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(below, f"{path}.{key}" if path else str(key))
    else:
        yield path, value
