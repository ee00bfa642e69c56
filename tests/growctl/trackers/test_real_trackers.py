"""The real trackers: what they store of a run that was resumed, and of its control."""

import json
import os
import sqlite3
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from growctl.ladder.stage_plans import plan_stages
from growctl.runs_dir import RunPaths, RunsPaths
from growctl.trackers.adapters import PACKAGES
from tests.growctl.trackers.invented import LARGE, SMALL, feed_ladder, here, patient, schedule_with, tracking_of

CONTROL = "tiny-control-scratch"
SLOW_TO_START = ("mlflow", "trackio")
"""These share this test's process, so that their imports are paid once."""

TRAINING = [(5, 4.5), (10, 4.0), (16, pytest.approx(3.4))]
"""The losses of the first stage by step."""

pytestmark = pytest.mark.slow


def resumed(runs: Path, tracker: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The store of a tracker with the ladder `tiny`, tracked in two starts, and at the second beside its control."""
    store = RunsPaths(runs).tracker_store(tracker)
    missing = [package for package in PACKAGES[tracker] if find_spec(package) is None]
    if missing:
        pytest.skip(f"needs the package {missing[0]}; pip install 'growctl[{tracker}]'")
    for variable in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_", "TRACKIO_"))]:
        monkeypatch.delenv(variable)
    patient(monkeypatch)
    if tracker in SLOW_TO_START:
        here(monkeypatch)
        monkeypatch.setenv("TRACKIO_DIR", str(store))
    schedule = schedule_with(tracker)
    said: list[str] = []
    with tracking_of(schedule, runs, said.append) as trackers:
        feed_ladder(trackers, schedule, runs, SMALL[:4], [])
    with ExitStack() as stack:
        for name, kind in (("tiny", "ladder"), (CONTROL, "tokenformer-scratch")):
            trackers = stack.enter_context(tracking_of(schedule, runs, said.append, name, kind))
            feed_ladder(trackers, schedule, runs, SMALL, LARGE, name)
    assert [text for text in said if not text.startswith("trackers: ")] == []
    return store


def id_of(runs: Path, tracker: str, name: str = "tiny") -> str:
    return json.loads(RunPaths(runs / name).tracker_memory(tracker).read_text())["id"]


def test_tensorboard_has_each_stage_as_a_run_of_its_own(tmp_path, monkeypatch):
    store = resumed(tmp_path, "tensorboard", monkeypatch)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    def points(folder: str, tag: str) -> list[tuple[int, Any]]:
        found = EventAccumulator(str(store / "tiny" / folder), {"tensors": 0}).Reload()
        return [(event.step, make_ndarray(event.tensor_proto).item()) for event in found.Tensors(tag)]

    small, large = plan_stages(schedule_with())
    assert points("tiny/0-small", "loss/training") == points(f"{CONTROL}/0-small", "loss/training") == TRAINING
    assert points("tiny/0-small", "by_tokens/loss/validation") == [(1280, 2.5), (2048, 2.5)]
    gigaflops = round((small.flops.total + large.flops.total) / 1e9)
    assert points("tiny/1-large", "by_gigaflops/loss/validation")[-1] == (gigaflops, 2.5)
    assert points("tiny/1-large", "parameters")[0] == (16, large.num_parameters)


def test_mlflow_has_the_ladder_and_its_control_as_runs_of_one_experiment(tmp_path, monkeypatch):
    store = resumed(tmp_path, "mlflow", monkeypatch)
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{store / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("tiny")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert runs.keys() == {"tiny", CONTROL}
    ladder = runs["tiny"]
    assert (ladder.info.run_id, ladder.info.status) == (id_of(tmp_path, "mlflow"), "FINISHED")
    assert (ladder.data.tags["growctl.kind"], ladder.data.params["model.hidden_size"]) == ("ladder", "32")

    def points(key: str) -> list[tuple[int, float]]:
        return [(point.step, point.value) for point in client.get_metric_history(ladder.info.run_id, key)]

    assert points("loss/training")[:3] == TRAINING
    assert points("by_tokens/loss/validation")[:2] == [(1280, 2.5), (2048, 2.5)]


def test_trackio_has_the_ladder_and_its_control_in_one_group(tmp_path, monkeypatch):
    store = resumed(tmp_path, "trackio", monkeypatch)
    with sqlite3.connect(store / "growctl.db") as database:
        select = "SELECT step, metrics FROM metrics WHERE run_id = ? ORDER BY id"
        rows = [(step, json.loads(text)) for step, text in database.execute(select, [id_of(tmp_path, "trackio")])]
        configs = {name: json.loads(text) for name, text in database.execute("SELECT run_name, config FROM configs")}
    assert [(step, row["loss/training"]) for step, row in rows if "loss/training" in row][:3] == TRAINING
    assert len([row for _, row in rows if row.get("loss/validation")]) == 4  # none twice
    assert {name: config["_Group"] for name, config in configs.items()} == {"tiny": "tiny", CONTROL: "tiny"}
    assert configs[CONTROL]["kind"] == "tokenformer-scratch"


def test_wandb_writes_offline_runs_that_continue_under_one_id(tmp_path, monkeypatch):
    store = resumed(tmp_path, "wandb", monkeypatch)
    run, control = id_of(tmp_path, "wandb"), id_of(tmp_path, "wandb", CONTROL)
    found = sorted(store.glob(f"wandb/offline-run-*-{run}/run-{run}.wandb"))
    assert len(found) == 2  # `wandb sync` joins them: same id, and rows numbered on
    assert b"loss/training" in found[0].read_bytes()
    assert b"loss/validation" in found[1].read_bytes()
    assert control != run
    assert len(list(store.glob(f"wandb/offline-run-*-{control}"))) == 1
