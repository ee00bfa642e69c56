"""What trackers are given of a run, and an adapter for each tracker. Imports a tracker's package only to use it.

An adapter is made with the run, the folder to write to unless the user's environment names a server, and the tracker's
`id` of the run if an earlier start had one. `log` writes points of one stage so that they outlive the process. An
adapter may be slow, hang or raise: it has a process of its own (growctl/trackers/process.py).
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import yaml

Status = Literal["finished", "interrupted", "failed"]
"""How growctl left the run: all that it was asked to train is trained, it was stopped, or training failed."""

PROJECT = "growctl"

PACKAGES = {
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "trackio": ("trackio",),
}
"""What each tracker imports; the extra of its name installs it. In the order of the schedule's allowed values."""


def missing_package(trackers: Sequence[str]) -> str | None:
    """The problem of the first of `trackers` whose package is not installed; None if all are."""
    for number, name in enumerate(trackers):
        for package in PACKAGES[name]:
            if find_spec(package) is None:
                return f"trackers.{number} = {name!r}: needs the package {package}; pip install 'growctl[{name}]'"
    return None


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
    """Values measured at a place in a run."""

    row: int
    """Grows from point to point, over all starts of the run."""
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
    values: dict[str, float]

    def by_axis(self) -> Iterator[tuple[str, float, int]]:
        """Each value once per axis, for trackers whose x axis is one whole number: name, value and x.

        FLOPs become gigaFLOPs, because trackers keep 64 bits.
        """
        axes = {"": self.step, "by_tokens/": self.tokens, "by_gigaflops/": round(self.flops / 1e9)}
        for prefix, x in axes.items():
            yield from ((prefix + name, value, x) for name, value in self.values.items())


class TensorBoard:
    """Event files, a directory per stage below GROUP/RUN: TensorBoard calls each directory a run and compares any of
    them. A resumed run adds files to the same directories."""

    def __init__(self, run: TrackedRun, store: Path, earlier_id: str | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.id = earlier_id or f"{run.group}/{run.name}"
        self._writer = cache(lambda folder: SummaryWriter(str(store / self.id / folder)))
        if not earlier_id:
            text = yaml.safe_dump(run.schedule, sort_keys=False, allow_unicode=True)
            self._writer("").add_text("schedule", f"```yaml\n{text}```")
            self._writer("").flush()

    def log(self, points: Sequence[TrackedPoint]) -> None:
        """Writes each value once per axis."""
        for point in points:
            writer = self._writer(f"{point.index}-{point.stage.replace('/', '-')}")  # a release's is beside its stage's
            for name, value, x in point.by_axis():
                writer.add_scalar(name, value, x, new_style=True)
        if points:
            writer.flush()

    def finish(self, status: Status) -> None:
        """Does nothing: TensorBoard knows no end of a run."""


class WeightsAndBiases:
    """A W&B run in the group of its ladder, offline unless WANDB_MODE says otherwise. Any value can be the x axis."""

    def __init__(self, run: TrackedRun, store: Path, earlier_id: str | None) -> None:
        os.environ.setdefault("WANDB_MODE", "offline")
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb  # after its variables

        quiet = {"console": "off", "disable_git": True, "save_code": False, "disable_code": True}
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            group=run.group,
            job_type=run.kind,
            name=run.name,
            id=earlier_id,
            resume="allow" if earlier_id else None,
            dir=str(store),
            config=run.schedule,
            settings=wandb.Settings(**quiet, x_disable_stats=True),
        )
        self.id = self._run.id
        self._run.define_metric("*", step_metric="step")

    def log(self, points: Sequence[TrackedPoint]) -> None:
        """Adds a row for each point."""
        for point in points:
            axes = {"step": point.step, "tokens": point.tokens, "flops": point.flops, "stage": point.index}
            # Rows have numbers: offline, W&B would start at 0 again, and `wandb sync` overwrite the first rows.
            self._run.log(point.values | axes, step=point.row)

    def finish(self, status: Status) -> None:
        """Ends the run."""
        self._run.finish(exit_code=0 if status == "finished" else 1)


class MLflow:
    """An MLflow run in the experiment of its ladder, in a SQLite store unless MLFLOW_TRACKING_URI names a server."""

    LONGEST_PARAM = 6000
    """What MLflow accepts as one value."""

    def __init__(self, run: TrackedRun, store: Path, earlier_id: str | None) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient, entities  # after its variable

        self._metric = entities.Metric
        server = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = client = MlflowClient(tracking_uri=server or f"sqlite:///{store / 'mlflow.db'}")
        if earlier_id:
            client.update_run(earlier_id, status="RUNNING")
            self.id = earlier_id
            return
        experiment = client.get_experiment_by_name(run.group)
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(run.group)
        tags = {"growctl.kind": run.kind, "growctl.group": run.group}
        self.id = client.create_run(experiment_id, run_name=run.name, tags=tags).info.run_id
        params = [entities.Param(name, str(value)[: self.LONGEST_PARAM]) for name, value in _flat(run.schedule)]
        client.log_batch(self.id, params=params)

    def log(self, points: Sequence[TrackedPoint]) -> None:
        """Writes each value once per axis."""
        now = int(time.time() * 1000)
        values = (each for point in points for each in point.by_axis())
        self._client.log_batch(self.id, metrics=[self._metric(name, value, now, x) for name, value, x in values])

    def finish(self, status: Status) -> None:
        """Ends the run."""
        ended = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}[status]
        self._client.set_terminated(self.id, ended)


class Trackio:
    """A trackio run in the group of its ladder, local unless the environment names a Space or a server."""

    def __init__(self, run: TrackedRun, store: Path, earlier_id: str | None) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(store))
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        import trackio  # after its variables

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

    def log(self, points: Sequence[TrackedPoint]) -> None:
        """Adds a row for each point."""
        for point in points:
            axes = {"tokens": point.tokens, "flops": point.flops, "stage": point.index}
            self._run.log(point.values | axes, step=point.step)

    def finish(self, status: Status) -> None:
        """Ends the run."""
        self._run.finish()


ADAPTERS = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow, "trackio": Trackio}


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a schedule by dotted path."""
    if isinstance(value, dict | list):
        for key, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(below, f"{path}.{key}" if path else str(key))
    else:
        yield path, value
