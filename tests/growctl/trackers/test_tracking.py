"""What trackers get of a run, and that none of them can slow or stop it."""

import shutil
import signal
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from growctl.ladder.stage_plans import plan_release, plan_stages
from growctl.runs.find import find_runs
from growctl.runs_dir import RunPaths
from growctl.trackers import adapters, tracking
from stages.metrics import Record, read_metrics
from tests.growctl.runs import UNUSABLE_INPUT, run_here, wait_for, write_schedule
from tests.growctl.trackers.invented import (
    LARGE,
    SMALL,
    STARTED,
    calls,
    evaluated,
    feed,
    feed_ladder,
    here,
    patient,
    record,
    schedule_with,
    stand_in,
    tracking_of,
    trained,
)
from tests.growctl.trackers.stand_ins import Noting, Raising
from tests.workers import HANG_SECONDS

NOTED = schedule_with("tensorboard")
PLANS = plan_stages(NOTED)
FAILED = "tracker {} failed or took too long and was stopped; training does not need it; see {}"


@pytest.fixture
def noting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracker `tensorboard` only notes what it is given."""
    here(monkeypatch)
    stand_in(monkeypatch, Noting)


def track(runs: Path, small: list[Record], large: list[Record]) -> list[Any]:
    """What one start of a run with those records gives its tracker: the run, the values, and how it ended."""
    before = len(calls(runs))
    with tracking_of(NOTED, runs) as trackers:
        feed_ladder(trackers, NOTED, runs, small, large)
    return calls(runs)[before:]


def test_a_tracker_gets_every_value_at_its_steps_tokens_and_flops(noting, tmp_path):
    first, *logged, last = track(tmp_path, SMALL, LARGE)
    assert (first, last) == (["run", "tiny", "tiny", "ladder", None], ["finish", "finished"])
    small, large = PLANS
    flops = small.step_flops.total
    assert [call[1:5] for call in logged[:2]] == [["small", 5, 640, 5 * flops], ["small", 10, 1280, 10 * flops]]
    assert logged[-1][1:5] == ["large", 36, 36 * 128, pytest.approx(small.flops.total + large.flops.total)]
    figures = {"learning_rate": 1e-3, "gradient_norm": 0.5, "tokens_per_second": 100.0}
    assert logged[0][5] == {"loss/training": 4.5, "parameters": small.num_parameters} | figures
    figures = {"loss/validation": 2.5, "perplexity": 12.18, "bits_per_byte": 1.2}
    assert logged[-1][5] == figures | {"parameters": large.num_parameters}


FIGURES = {"bits_per_byte": 1.0, "num_tokens": 10, "trained_tokens": 5, "epochs": 0.5}
SOURCES = {"books": {"loss": 3.5} | FIGURES, "code": {"loss": None} | FIGURES}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (record("anomaly", 7, value=9.0), {"rejected_loss": 9.0}),
        (trained(8, loss=None, gradient_norm=None), {"learning_rate": 1e-3, "tokens_per_second": 100.0}),
        (
            evaluated(4, by_source=SOURCES, own_context_loss=4.5, perplexity=None, bits_per_byte=None),
            {"loss/validation": 2.5, "loss/validation/books": 3.5, "loss/validation_at_own_context": 4.5},
        ),
    ],
    ids=["rejected update", "not finite", "mixture"],
)
def test_a_record_is_shown_with_those_of_its_values_that_are_finite(noting, tmp_path, given, shown):
    logged = [call[5] for call in track(tmp_path, [STARTED, given], []) if call[0] == "log"]
    assert logged == [shown | {"parameters": PLANS[0].num_parameters}]


def test_a_release_continues_at_the_end_of_its_stage_with_lines_of_its_own(noting, tmp_path):
    schedule = schedule_with("tensorboard", **{"stages.0.release": True})
    plans = plan_stages(schedule)
    release = plan_release(schedule, plans[0])
    assert release is not None
    with tracking_of(schedule, tmp_path) as trackers:
        feed(trackers, release, plans, tmp_path, [STARTED, evaluated(0, "start"), evaluated(1)], "tiny")
    _, *logged, _ = calls(tmp_path)
    assert [call[1:4] for call in logged] == [["small/release", 16, 2048], ["small/release", 17, 2176]]
    assert logged[1][4] == pytest.approx(plans[0].flops.total + release.step_flops.total)
    assert "release/loss/validation" in logged[0][5]


def test_a_resumed_run_keeps_its_id_and_gets_only_what_is_new(noting, tmp_path):
    track(tmp_path, SMALL[:4], [])
    first, *logged, _ = track(tmp_path, SMALL, LARGE)
    assert first == ["run", "tiny", "tiny", "ladder", "the-first"]
    assert [call[2] for call in logged if call[1] == "small"] == [16, 16]
    assert [call[0] for call in track(tmp_path, SMALL, LARGE)] == ["run", "finish"]


def test_records_that_are_read_again_are_not_given_twice(noting, tmp_path):
    with tracking_of(NOTED, tmp_path) as trackers:
        for records in (SMALL[:3], SMALL, SMALL):  # as after an interrupted read
            feed(trackers, PLANS[0], PLANS, tmp_path, records, "tiny")
    _, *logged, _ = calls(tmp_path)
    assert [call[2] for call in logged] == [5, 10, 10, 16, 16]
    assert [call[6] for call in logged] == [1, 2, 3, 4, 5], "the numbers of rows"


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, "interrupted"), (ValueError, "failed")])
def test_a_tracker_is_told_how_the_run_ended_and_the_user_where_it_writes(noting, tmp_path, error, status):
    said: list[str] = []
    with pytest.raises(error), tracking_of(NOTED, tmp_path, said.append):
        raise error
    assert calls(tmp_path)[-1] == ["finish", status]
    assert said == [f"trackers: tensorboard, in {tmp_path}/.trackers unless your environment says else"]


def test_a_tracker_that_raises_gets_one_warning_and_the_run_goes_on(monkeypatch, tmp_path):
    patient(monkeypatch)
    stand_in(monkeypatch, Raising)
    said: list[str] = []
    with tracking_of(NOTED, tmp_path, said.append) as trackers:
        feed_ladder(trackers, NOTED, tmp_path, SMALL, [])
        wait_for(lambda: len(said) > 1)
        feed_ladder(trackers, NOTED, tmp_path, SMALL, LARGE)
    log = RunPaths(tmp_path / "tiny").trackers_log
    assert said[1:] == [FAILED.format("tensorboard", log)]
    assert "ConnectionError: the server" in log.read_text()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_tracker_that_stops_answering_or_dies_stops_no_run(monkeypatch, tmp_path, number):
    stand_in(monkeypatch, Noting)
    monkeypatch.setattr(tracking, "FINISH_SECONDS", 0.1)
    said: list[str] = []
    with tracking_of(NOTED, tmp_path, said.append) as trackers:
        trackers._processes["tensorboard"].send_signal(number)
        if number == signal.SIGKILL:
            wait_for(lambda: len(said) > 1)
        for _ in range(300):  # more than a pipe holds
            feed_ladder(trackers, NOTED, tmp_path, SMALL, [])
    assert said[1:] == [FAILED.format("tensorboard", RunPaths(tmp_path / "tiny").trackers_log)]


def test_a_killed_growctl_leaves_trackers_that_finish_by_themselves(monkeypatch, tmp_path):
    stand_in(monkeypatch, Noting)
    trackers = tracking_of(NOTED, tmp_path)
    trackers.__enter__()
    feed_ladder(trackers, NOTED, tmp_path, SMALL, [])
    process = trackers._processes["tensorboard"]
    process.stdin.close()  # as the end of growctl does
    process.wait(HANG_SECONDS)
    assert calls(tmp_path)[-1] == ["finish", "interrupted"]
    assert [call[0] for call in calls(tmp_path)].count("log") == 5


def test_a_tracker_without_its_package_is_found_before_anything_is_trained_or_written(monkeypatch, tmp_path):
    monkeypatch.setattr(adapters, "find_spec", lambda name: None if name == "wandb" else ModuleSpec(name, None))
    message = "trackers.1 = 'wandb': needs the package wandb; pip install 'growctl[wandb]'"
    schedule, runs = write_schedule(tmp_path), ("--runs-dir", tmp_path / "runs")
    arguments = (schedule, "trackers=[tensorboard,wandb]")
    assert run_here("run", *arguments, *runs, expect=UNUSABLE_INPUT) == ("", f"growctl: {message}\n")
    assert not (tmp_path / "runs").exists()


def test_a_tracker_that_is_added_to_a_finished_run_gets_all_of_it(two_ranks, tmp_path, monkeypatch):
    here(monkeypatch)
    stand_in(monkeypatch, Noting)
    schedule, trained = two_ranks
    runs = Path(shutil.copytree(trained, tmp_path / "runs", symlinks=True))
    arguments = ("run", schedule, "launch.devices=2", "--runs-dir", runs)
    assert "trackers" not in run_here(*arguments)[0]
    assert f"trackers: tensorboard, in {runs}/.trackers unless" in run_here(*arguments, "trackers=[tensorboard]")[0]
    first, *logged, last = calls(runs)
    assert (first[:4], last) == (["run", "tiny", "tiny", "ladder"], ["finish", "finished"])
    for _, name, stage in RunPaths(runs / "tiny").stages_found():
        shown = [record for record in read_metrics(stage.metrics) if record["event"] in ("train", "evaluation")]
        assert len([call for call in logged if call[:2] == ["log", name]]) == len(shown)
    ends = {call[1]: call[4] for call in logged}
    assert ends == pytest.approx({stage.name: stage.cumulative_flops for stage in find_runs(runs)[0].stages})
