"""The real trackers: what they store of a run that was resumed, and of its control."""

import json
import sqlite3
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from growctl.ladder.stage_plans import plan_stages
from growctl.runs_dir import RunPaths, RunsPaths
from growctl.trackers.adapters import PACKAGES
from tests.growctl.invented_runs import FakeRun, stage_of
from tests.growctl.trackers.invented import (
    LARGE,
    SMALL,
    feed_ladder,
    here,
    offline,
    patient,
    schedule_with,
    tracking_of,
)

CONTROL = "tiny-control-scratch"
SLOW_TO_START = ("mlflow", "trackio")
"""These share this test's process, so that their imports are paid once."""


@pytest.fixture
def resumed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A runs directory with the ladder `tiny`, tracked in two starts, and at the second beside its control."""
    tracker = request.param
    missing = [package for package in PACKAGES[tracker] if find_spec(package) is None]
    if missing:
        pytest.skip(f"needs the package {missing[0]}; pip install 'growctl[{tracker}]'")
    offline(monkeypatch)
    patient(monkeypatch)
    if tracker in SLOW_TO_START:
        here(monkeypatch)
        monkeypatch.setenv("TRACKIO_DIR", str(store_of(tmp_path, tracker)))
    ladder = FakeRun(tmp_path, "tiny", [stage_of("small", 1000, 16), stage_of("large", 2000, 20)])
    ladder.train(0, 4.0).train(1, 3.5)
    schedule = schedule_with(tracker)
    said: list[str] = []
    with tracking_of(schedule, tmp_path, said.append) as trackers:
        feed_ladder(trackers, schedule, tmp_path, SMALL[:4], [])
    with ExitStack() as stack:
        for name, kind in (("tiny", "ladder"), (CONTROL, "tokenformer-scratch")):
            trackers = stack.enter_context(tracking_of(schedule, tmp_path, said.append, name, kind))
            feed_ladder(trackers, schedule, tmp_path, SMALL, LARGE, name)
    assert [text for text in said if not text.startswith("trackers: ")] == []
    return tmp_path


def id_of(runs: Path, tracker: str, name: str = "tiny") -> str:
    return json.loads(RunPaths(runs / name).tracker_memory(tracker).read_text())["id"]


def store_of(runs: Path, tracker: str) -> Path:
    return RunsPaths(runs).tracker_store(tracker)


@pytest.mark.slow
@pytest.mark.parametrize("resumed", ["tensorboard"], indirect=True)
def test_tensorboard_has_each_stage_as_a_run_of_its_own(resumed):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    def read(folder: str) -> EventAccumulator:
        found = EventAccumulator(str(store_of(resumed, "tensorboard") / "tiny" / folder), {"tensors": 0})
        return found.Reload()

    def points(folder: str, tag: str) -> list[tuple[int, Any]]:
        return [(event.step, make_ndarray(event.tensor_proto).item()) for event in read(folder).Tensors(tag)]

    small, large = plan_stages(schedule_with())
    assert points("tiny/0-small", "loss/training") == [(5, 4.5), (10, 4.0), (16, pytest.approx(3.4))]
    assert points("tiny/0-small", "by_tokens/loss/validation") == [(1280, 4.0), (2048, 4.0)]
    gigaflops = round((small.flops.total + large.flops.total) / 1e9)
    assert points("tiny/1-large", "by_gigaflops/loss/validation")[-1] == (gigaflops, 4.0)
    assert points("tiny/1-large", "parameters")[0] == (16, large.num_parameters)
    assert b"hidden_size: 32" in points("tiny", "schedule/text_summary")[0][1]
    assert points(f"{CONTROL}/0-small", "loss/training") == points("tiny/0-small", "loss/training")


@pytest.mark.slow
@pytest.mark.parametrize("resumed", ["mlflow"], indirect=True)
def test_mlflow_has_the_ladder_and_its_control_as_runs_of_one_experiment(resumed):
    from mlflow import MlflowClient

    store = store_of(resumed, "mlflow")
    client = MlflowClient(f"sqlite:///{store / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("tiny")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert runs.keys() == {"tiny", CONTROL}
    ladder = runs["tiny"]
    assert ladder.info.run_id == id_of(resumed, "mlflow")
    assert ladder.info.status == "FINISHED"
    assert (ladder.data.tags["growctl.kind"], ladder.data.params["model.hidden_size"]) == ("ladder", "32")

    def points(key: str) -> list[tuple[int, float]]:
        return [(point.step, point.value) for point in client.get_metric_history(ladder.info.run_id, key)]

    assert points("loss/training")[:3] == [(5, 4.5), (10, 4.0), (16, pytest.approx(3.4))]
    assert points("by_tokens/loss/validation")[:2] == [(1280, 4.0), (2048, 4.0)]


@pytest.mark.slow
@pytest.mark.parametrize("resumed", ["trackio"], indirect=True)
def test_trackio_has_the_ladder_and_its_control_in_one_group(resumed):
    with sqlite3.connect(store_of(resumed, "trackio") / "growctl.db") as store:
        run = id_of(resumed, "trackio")
        own = store.execute("SELECT step, metrics FROM metrics WHERE run_id = ? ORDER BY id", [run]).fetchall()
        rows = [(step, json.loads(metrics)) for step, metrics in own]
        configs = {name: json.loads(text) for name, text in store.execute("SELECT run_name, config FROM configs")}
    assert [(step, row["loss/training"]) for step, row in rows if "loss/training" in row][:2] == [(5, 4.5), (10, 4.0)]
    assert len([row for _, row in rows if row.get("loss/validation")]) == 4  # none twice
    assert rows[0][1]["tokens"] == 5 * 128
    assert {name: config["_Group"] for name, config in configs.items()} == {"tiny": "tiny", CONTROL: "tiny"}
    assert configs[CONTROL]["kind"] == "tokenformer-scratch"
    assert configs["tiny"]["schedule"]["model"]["hidden_size"] == 32


@pytest.mark.slow
@pytest.mark.parametrize("resumed", ["wandb"], indirect=True)
def test_wandb_writes_offline_runs_that_continue_under_one_id(resumed):
    store = store_of(resumed, "wandb")
    run = id_of(resumed, "wandb")
    found = sorted(store.glob(f"wandb/offline-run-*-{run}/run-{run}.wandb"))
    assert len(found) == 2  # `wandb sync` joins them: same id, and rows numbered on
    first, second = (path.read_bytes() for path in found)
    assert b"loss/training" in first
    assert b"loss/validation" in second
    control = id_of(resumed, "wandb", CONTROL)
    assert control != run
    assert len(list(store.glob(f"wandb/offline-run-*-{control}"))) == 1
