"""What trackers get of a run, and that none of them can slow or stop it."""

import signal
from typing import Any

import pytest

from growctl.ladder.stage_plans import paths_of, plan_stages
from growctl.runs_dir import RunPaths
from growctl.trackers import tracking
from growctl.trackers.adapters import TrackedPoint
from tests.growctl.runs import wait_for
from tests.growctl.schedules import changed as changed_data
from tests.growctl.schedules import message_of, parse
from tests.growctl.trackers.invented import (
    LARGE,
    SMALL,
    calls,
    evaluated,
    feed_ladder,
    here,
    line,
    patient,
    schedule_with,
    stand_in,
    started,
    tracking_of,
    trained,
    write_records,
)
from tests.growctl.trackers.stand_ins import Hanging, Noting, Raising
from tests.workers import HANG_SECONDS

FAILED = "tracker {} failed or took too long and was stopped; training does not need it; see {}"


@pytest.fixture
def noting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracker `tensorboard` only notes what it is given."""
    here(monkeypatch)
    stand_in(monkeypatch, Noting)


def test_a_tracker_gets_every_value_at_its_steps_tokens_and_flops(noting, tmp_path):
    schedule = schedule_with("tensorboard")
    with tracking_of(schedule, tmp_path) as trackers:
        feed_ladder(trackers, schedule, tmp_path, SMALL, LARGE)
    first, *logged, last = calls(tmp_path)
    assert first == ["run", "tiny", "tiny", "ladder", None]
    assert last == ["finish", "finished"]
    small, large = plan_stages(schedule)
    places = [call[1:5] for call in logged if call[0] == "log"]
    flops = small.step_flops.total
    assert places[:2] == [["small", 5, 5 * 128, 5 * flops], ["small", 10, 10 * 128, 10 * flops]]
    end = small.flops.total + large.flops.total
    assert places[-1] == ["large", 36, 36 * 128, pytest.approx(end)]
    assert logged[0][5] == {
        "loss/training": 4.5,
        "learning_rate": 1e-3,
        "gradient_norm": 0.5,
        "tokens_per_second": 1000.0,
        "parameters": small.num_parameters,
    }
    assert logged[-1][5] == {
        "loss/validation": 4.0,
        "perplexity": 54.6,
        "bits_per_byte": 2.5,
        "parameters": large.num_parameters,
    }


def test_a_rejected_update_shows_its_loss_and_values_that_are_not_finite_are_left_out(noting, tmp_path):
    schedule = schedule_with("tensorboard")
    spike: dict[str, Any] = {"kind": "spike", "value": 9.0, "threshold": 8.0, "action": "skip"}
    places: dict[str, Any] = {"first_step": 7, "num_steps": 0}
    rejected = [line("anomaly", 7, **spike, **places), line("anomaly", 8, **spike | {"value": None}, **places)]
    empty = trained(8) | {"loss": None, "gradient_norm": None}
    with tracking_of(schedule, tmp_path) as trackers:
        feed_ladder(trackers, schedule, tmp_path, [started(), *rejected, empty], [])
    shown = [sorted(call[5]) for call in calls(tmp_path) if call[0] == "log"]
    assert shown == [["parameters", "rejected_loss"], ["learning_rate", "parameters", "tokens_per_second"]]


def test_a_release_continues_at_the_end_of_its_stage_with_lines_of_its_own(noting, tmp_path):
    from growctl.ladder.stage_plans import plan_release

    schedule = schedule_with("tensorboard", **{"stages.0.release": True})
    plans = plan_stages(schedule)
    release = plan_release(schedule, plans[0])
    assert release is not None
    with tracking_of(schedule, tmp_path) as trackers:
        write_records(
            paths_of(RunPaths(tmp_path / "tiny"), release).metrics, [started(), evaluated(0, "start"), evaluated(1)]
        )
        trackers.from_the_start(release, plans)
    logged = [call for call in calls(tmp_path) if call[0] == "log"]
    assert [call[1:4] for call in logged] == [["small/release", 16, 2048], ["small/release", 17, 2176]]
    assert logged[1][4] == pytest.approx(plans[0].flops.total + release.step_flops.total)
    assert "release/loss/validation" in logged[0][5]


def test_a_mixture_has_the_validation_loss_of_each_source(noting, tmp_path):
    schedule = schedule_with("tensorboard")
    plans = plan_stages(schedule)
    figures = {"bits_per_byte": 1.0, "num_tokens": 10, "trained_tokens": 5, "epochs": 0.5}
    by_source = {"books": {"loss": 3.5} | figures, "code": {"loss": None} | figures}
    with tracking_of(schedule, tmp_path) as trackers:
        records = [started(), evaluated(4) | {"by_source": by_source, "own_context_loss": 4.5}]
        write_records(paths_of(RunPaths(tmp_path / "tiny"), plans[0]).metrics, records)
        trackers.from_the_start(plans[0], plans)
    [logged] = [call for call in calls(tmp_path) if call[0] == "log"]
    assert {name: value for name, value in logged[5].items() if name.startswith("loss")} == {
        "loss/validation": 4.0,
        "loss/validation/books": 3.5,
        "loss/validation_at_own_context": 4.5,
    }


def test_a_value_has_one_x_for_each_axis():
    point = TrackedPoint(0, "s", 0, 3, 10**13, 2.0**80, {"loss": 4.0})
    assert list(point.by_axis()) == [
        ("loss", 4.0, 3),
        ("by_tokens/loss", 4.0, 10**13),
        ("by_gigaflops/loss", 4.0, 1208925819614629),
    ]


def test_a_resumed_run_keeps_its_id_and_gets_only_what_is_new(noting, tmp_path):
    schedule = schedule_with("tensorboard")
    with tracking_of(schedule, tmp_path) as trackers:
        feed_ladder(trackers, schedule, tmp_path, SMALL[:4], [])
    before = calls(tmp_path)
    with tracking_of(schedule, tmp_path) as trackers:
        feed_ladder(trackers, schedule, tmp_path, SMALL, LARGE)
    first, *logged, _ = calls(tmp_path)[len(before) :]
    assert first == ["run", "tiny", "tiny", "ladder", "the-first"]
    assert [call[2] for call in logged if call[1] == "small"] == [16, 16]
    with tracking_of(schedule, tmp_path) as trackers:
        feed_ladder(trackers, schedule, tmp_path, SMALL, LARGE)
    assert [call[0] for call in calls(tmp_path)[-2:]] == ["run", "finish"]  # nothing twice, also no growth


def test_records_that_are_read_again_are_not_given_twice(noting, tmp_path):
    schedule = schedule_with("tensorboard")
    plans = plan_stages(schedule)
    metrics = paths_of(RunPaths(tmp_path / "tiny"), plans[0]).metrics
    with tracking_of(schedule, tmp_path) as trackers:
        write_records(metrics, SMALL[:3])
        trackers.from_the_start(plans[0], plans)
        write_records(metrics, SMALL)
        trackers.from_the_start(plans[0], plans)  # as after an interrupted read
    assert [call[2] for call in calls(tmp_path) if call[0] == "log"] == [5, 10, 10, 16, 16]
    assert [call[6] for call in calls(tmp_path) if call[0] == "log"] == [0, 1, 2, 3, 4]  # numbers of rows


def test_a_run_that_was_stopped_is_interrupted_and_one_that_failed_has_failed(noting, tmp_path):
    for error, status in ((KeyboardInterrupt, "interrupted"), (ValueError, "failed")):
        with pytest.raises(error), tracking_of(schedule_with("tensorboard"), tmp_path):
            raise error
        assert calls(tmp_path)[-1] == ["finish", status]


def test_the_start_line_says_which_trackers_write_where(noting, tmp_path):
    said: list[str] = []
    with tracking_of(schedule_with("tensorboard"), tmp_path, said.append):
        pass
    assert said == [f"trackers: tensorboard, in {tmp_path}/.trackers unless your environment says else"]


def test_a_tracker_that_raises_gets_one_warning_and_the_run_goes_on(monkeypatch, tmp_path):
    patient(monkeypatch)
    stand_in(monkeypatch, Raising)
    said: list[str] = []
    schedule = schedule_with("tensorboard")
    with tracking_of(schedule, tmp_path, said.append) as trackers:
        feed_ladder(trackers, schedule, tmp_path, SMALL, [])
        wait_for(lambda: len(said) > 1)
        feed_ladder(trackers, schedule, tmp_path, SMALL, LARGE)
    [warning] = said[1:]
    log = RunPaths(tmp_path / "tiny").trackers_log
    assert warning == FAILED.format("tensorboard", log)
    assert "ConnectionError: the server" in log.read_text()


def test_a_tracker_that_hangs_forever_holds_up_no_other_and_is_stopped_after_a_bounded_wait(monkeypatch, tmp_path):
    stand_in(monkeypatch, Hanging)
    stand_in(monkeypatch, Noting, "mlflow")
    monkeypatch.setattr(tracking, "FINISH_SECONDS", 3.0)
    said: list[str] = []
    schedule = schedule_with("tensorboard", "mlflow")
    with tracking_of(schedule, tmp_path, said.append) as trackers:
        feed_ladder(trackers, schedule, tmp_path, SMALL, LARGE)
        wait_for(lambda: len(calls(tmp_path, "mlflow")) > 5)
        processes = list(trackers._processes.values())
    assert said[1:] == [FAILED.format("tensorboard", RunPaths(tmp_path / "tiny").trackers_log)]
    assert [process.poll() for process in processes] == [-signal.SIGKILL, 0]
    assert calls(tmp_path, "mlflow")[-1][0] == "finish"


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_tracker_that_stops_answering_or_dies_stops_no_run(monkeypatch, tmp_path, number):
    stand_in(monkeypatch, Noting)
    monkeypatch.setattr(tracking, "FINISH_SECONDS", 0.1)
    schedule = schedule_with("tensorboard")
    said: list[str] = []
    with tracking_of(schedule, tmp_path, said.append) as trackers:
        trackers._processes["tensorboard"].send_signal(number)
        if number == signal.SIGKILL:
            wait_for(lambda: len(said) > 1)
        for _ in range(300):  # more than a pipe holds
            feed_ladder(trackers, schedule, tmp_path, SMALL, [])
    assert said[1:] == [FAILED.format("tensorboard", RunPaths(tmp_path / "tiny").trackers_log)]


def test_a_killed_growctl_leaves_trackers_that_finish_by_themselves(monkeypatch, tmp_path):
    stand_in(monkeypatch, Noting)
    schedule = schedule_with("tensorboard")
    trackers = tracking_of(schedule, tmp_path)
    trackers.__enter__()
    feed_ladder(trackers, schedule, tmp_path, SMALL, [])
    process = trackers._processes["tensorboard"]
    process.stdin.close()  # as the end of growctl does
    process.wait(HANG_SECONDS)
    assert calls(tmp_path)[-1] == ["finish", "interrupted"]
    assert len([call for call in calls(tmp_path) if call[0] == "log"]) == 5


def test_an_unknown_tracker_is_rejected_with_the_known_names():
    known = "must be 'tensorboard', 'wandb', 'mlflow' or 'trackio'"
    values: tuple[Any, ...] = ("tensorbord", 3, [])
    for value in values:
        said = message_of(parse, changed_data({"trackers": [value]}))
        assert said == f"s.yaml: trackers.0 = {value!r}: {known}"
