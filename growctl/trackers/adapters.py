"""The trackers: what growctl tells them of a run, and an adapter for each. Imports a tracker's package only to use it.

An adapter is made with the run, the folder to write to unless the user's environment names a server, and the tracker's
`id` of the run if an earlier start had one. `log` writes points so that they outlive the process; `row` is the number
of the first one, over all starts. `finish` ends the run with the figures of the report's table. An adapter may be slow,
hang or raise: only its own thread of the trackers' process does (growctl/trackers/process.py).
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import yaml

from growctl.runs_dir import RunPaths

Status = Literal["finished", "interrupted", "failed"]
"""How growctl left the run: all that it was asked to train is trained, it was stopped, or training failed."""

PROJECT = "growctl"

OFFLINE_MODES = ("", "offline", "dryrun", "disabled")
"""Values of WANDB_MODE, which is a mode and not an address, that send nothing."""


@dataclass(frozen=True)
class Kind:
    """A kind of tracker."""

    adapter: str
    """Its class, as module:Class."""

    packages: tuple[str, ...]
    """What it imports; the extra of its own name installs them."""

    online: tuple[str, ...] = ()
    """Environment variables with which the user names a server."""


KINDS = {
    "tensorboard": Kind(f"{__name__}:TensorBoard", ("tensorboard",)),
    "wandb": Kind(f"{__name__}:WeightsAndBiases", ("wandb",), ("WANDB_MODE",)),
    "mlflow": Kind(f"{__name__}:MLflow", ("mlflow", "sqlalchemy", "alembic"), ("MLFLOW_TRACKING_URI",)),
    "trackio": Kind(f"{__name__}:Trackio", ("trackio",), ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")),
}
"""In the order of the schedule's allowed values."""


def missing_package(trackers: Sequence[str]) -> str | None:
    """The problem of the first of `trackers` whose package is not installed; None if all are."""
    for number, name in enumerate(trackers):
        for package in KINDS[name].packages:
            if find_spec(package) is None:
                return f"trackers.{number} = {name!r}: needs the package {package}; pip install 'growctl[{name}]'"
    return None


def where(name: str, store: Path, environment: Mapping[str, str]) -> str:
    """The tracker `name` and where it writes: a path, or the variable that sends it online. Variables may hold secrets,
    so their values are not shown."""
    online = [variable for variable in KINDS[name].online if environment.get(variable, "") not in OFFLINE_MODES]
    return f"{name} online ({online[0]} is set)" if online else f"{name} in {store}"


@dataclass(frozen=True)
class TrackedRun:
    """A run, as trackers show it."""

    name: str
    group: str
    """The ladder's name: a ladder and its controls are one group."""
    kind: str
    """`ladder`, or the kind of control."""
    schedule: dict[str, Any]
    """The resolved schedule, with every default written out."""


@dataclass(frozen=True)
class TrackedPoint:
    """Values measured at a place in a run, or an event there, which has a text."""

    stage: str
    """The name of the stage; for a release, `STAGE/release`."""
    index: int
    """The number of the stage in the ladder, from 0."""
    step: int
    """Optimizer steps since the first stage began."""
    tokens: int
    """Data tokens that the model has been trained on."""
    flops: float
    """Training FLOPs that the model has cost."""
    num_parameters: int
    values: dict[str, float]
    event: str = ""
    """`growth` or `anomaly`; empty for values alone."""
    text: str = ""

    @property
    def axes(self) -> dict[str, float]:
        """The place as values, for trackers that can use any value as the x axis."""
        place = {"step": self.step, "tokens": self.tokens, "flops": self.flops}
        return place | {"stage": self.index, "parameters": self.num_parameters}

    def by_axis(self) -> Iterator[tuple[str, float, int]]:
        """Each value once per axis, for trackers whose x axis is one whole number: name, value and x.

        FLOPs become gigaFLOPs, because trackers keep 64 bits.
        """
        axes = {"": self.step, "by_tokens/": self.tokens, "by_gigaflops/": round(self.flops / 1e9)}
        for prefix, x in axes.items():
            yield from ((prefix + name, value, x) for name, value in self.values.items())


def schedule_yaml(run: TrackedRun) -> str:
    """The resolved schedule as text."""
    return yaml.safe_dump(run.schedule, sort_keys=False, allow_unicode=True)


class TensorBoard:
    """Event files, a directory per stage below GROUP/RUN: TensorBoard calls each directory a run and compares any of
    them. A resumed run adds files to the same directories. Needs neither torch nor TensorFlow."""

    def __init__(self, run: TrackedRun, store: Path, earlier_id: str | None) -> None:
        self.id = earlier_id or f"{run.group}/{run.name}"
        self._directory = store / self.id
        self._writers: dict[str, Any] = {}
        if not earlier_id:
            self._write_text("", "schedule", f"```yaml\n{schedule_yaml(run)}```")

    def log(self, points: Sequence[TrackedPoint], row: int) -> None:
        """Writes each value once per axis, and events as texts."""
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        for point in points:
            folder = f"{point.index}-{point.stage.replace('/', '-')}"  # of a release, beside its stage's
            if point.event:
                self._write_text(folder, point.event, point.text, point.step)
            for name, value, x in point.by_axis():
                self._write(folder, scalar_pb(name, value), x)
        for writer in self._writers.values():
            writer.flush()

    def finish(self, status: Status, figures: Mapping[str, float]) -> None:
        """Writes the status as a text, and the figures."""
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        self._write_text("", "status", status)
        for name, value in figures.items():
            self._write("", scalar_pb(name, value), 0)
        for writer in self._writers.values():
            writer.close()

    def _write_text(self, folder: str, name: str, text: str, x: int = 0) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._write(folder, text_pb(name, text), x)

    def _write(self, folder: str, summary: Any, x: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if folder not in self._writers:
            self._writers[folder] = EventFileWriter(str(self._directory / folder))
        self._writers[folder].add_event(Event(summary=summary, step=x, wall_time=time.time()))


class WeightsAndBiases:
    """A W&B run in the group of its ladder, offline unless WANDB_MODE says otherwise. Any value can be the x axis."""

    def __init__(self, run: TrackedRun, store: Path, earlier_id: str | None) -> None:
        os.environ.setdefault("WANDB_MODE", "offline")
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb  # after its variables

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            group=run.group,
            job_type=run.kind,
            name=run.name,
            id=earlier_id,
            resume="allow" if earlier_id else None,
            dir=str(store),
            config=run.schedule,
            tags=[run.kind],
            settings=wandb.Settings(
                console="off", disable_git=True, save_code=False, disable_code=True, x_disable_stats=True
            ),
        )
        self.id = self._run.id
        self._run.define_metric("*", step_metric="step")

    def log(self, points: Sequence[TrackedPoint], row: int) -> None:
        """Adds a row for each point; a growth also adds its stage to the run's tags."""
        for number, point in enumerate(points, row):
            event = {point.event: point.text} if point.event else {}
            # Rows have numbers: offline, W&B would start at 0 again, and `wandb sync` overwrite the first rows.
            self._run.log({**point.values, **event, **point.axes}, step=number)
            if point.event == "growth":
                self._run.tags = (*(self._run.tags or ()), f"stage {point.stage}"[:64])

    def finish(self, status: Status, figures: Mapping[str, float]) -> None:
        """Writes the figures into the summary."""
        self._run.summary.update({"status": status, **figures})
        self._run.finish(exit_code=0 if status == "finished" else 1)


class MLflow:
    """An MLflow run in the experiment of its ladder, in a SQLite store unless MLFLOW_TRACKING_URI names a server."""

    MOST_METRICS, MOST_PARAMS, LONGEST_PARAM = 1000, 100, 6000
    """What MLflow accepts in one batch, and in one value."""

    def __init__(self, run: TrackedRun, store: Path, earlier_id: str | None) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient, entities, exceptions  # after its variable

        self._entities = entities
        server = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = client = MlflowClient(tracking_uri=server or f"sqlite:///{store / 'mlflow.db'}")
        if earlier_id:
            try:  # the run of an earlier start goes on, unless somebody has deleted it
                client.update_run(earlier_id, status="RUNNING")
                self.id = earlier_id
                return
            except exceptions.MlflowException as error:
                print(f"MLflow's run {earlier_id} cannot be continued: {error}", flush=True)
        if experiment := client.get_experiment_by_name(run.group):
            experiment_id = experiment.experiment_id
        else:
            artifacts = None if server else (store / "artifacts").as_uri()
            experiment_id = client.create_experiment(run.group, artifact_location=artifacts)
        tags = {"growctl.kind": run.kind, "growctl.group": run.group}
        self.id = client.create_run(experiment_id, run_name=run.name, tags=tags).info.run_id
        params = [entities.Param(name, str(value)[: self.LONGEST_PARAM]) for name, value in _flat(run.schedule)]
        for first in range(0, len(params), self.MOST_PARAMS):
            client.log_batch(self.id, params=params[first : first + self.MOST_PARAMS])
        client.log_text(self.id, schedule_yaml(run), RunPaths(store).schedule.name)

    def log(self, points: Sequence[TrackedPoint], row: int) -> None:
        """Writes each value once per axis, and the texts of events as tags."""
        self._log_metrics([measured for point in points for measured in point.by_axis()])
        for point in points:
            if point.event:
                self._client.set_tag(self.id, f"growctl.{point.event}.{point.stage}.{point.step}", point.text)

    def finish(self, status: Status, figures: Mapping[str, float]) -> None:
        """Writes the figures as metrics."""
        self._log_metrics([(name, value, 0) for name, value in figures.items()])
        ended = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}[status]
        self._client.set_terminated(self.id, ended)

    def _log_metrics(self, measured: Sequence[tuple[str, float, int]]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(name, value, now, x) for name, value, x in measured]
        for first in range(0, len(metrics), self.MOST_METRICS):
            self._client.log_batch(self.id, metrics=metrics[first : first + self.MOST_METRICS])


class Trackio:
    """A trackio run in the group of its ladder, local unless the environment names a Space or a server."""

    def __init__(self, run: TrackedRun, store: Path, earlier_id: str | None) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(store))
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        import trackio  # after its variables

        self._trackio = trackio
        self._run = trackio.init(
            project=PROJECT,
            name=run.name,
            group=run.group,
            config={"kind": run.kind, "schedule": run.schedule},
            resume="allow" if earlier_id else "never",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self.id = str(self._run.id)

    def log(self, points: Sequence[TrackedPoint], row: int) -> None:
        """Adds a row for each point, and an alert for events, which the dashboard lists."""
        for point in points:
            if point.event:
                level = self._trackio.AlertLevel.INFO
                self._run.alert(title=point.event, text=point.text, level=level, step=point.step)
            axes = point.axes
            step = axes.pop("step")  # trackio keeps it itself
            self._run.log({**point.values, **axes}, step=step)

    def finish(self, status: Status, figures: Mapping[str, float]) -> None:
        """Adds a row with the figures."""
        self._run.log(dict(figures))
        self._run.finish()


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a schedule by dotted path."""
    if isinstance(value, dict | list):
        for key, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(below, f"{path}.{key}" if path else str(key))
    else:
        yield path, value
