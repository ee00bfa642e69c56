"""Sets of runs: read from hydra's sweep syntax, named, started, resumed and recorded. Nothing is trained."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from growctl.ladder.load import load_schedule
from growctl.ledger.ledger import Ledger
from growctl.report.documents import report_document
from growctl.run import sets
from growctl.run.requests import LadderRequest, RunFailed, RunRequest, schedule_yaml
from growctl.run.sets import SweepError, grid, run_names
from growctl.run.signals import Stopped
from growctl.runs.directory import RunSet, read_run_set
from growctl.runs.find import find_runs
from growctl.runs.status import find_status
from growctl.runs_dir import RUN_NAME, RunPaths
from tests.growctl.invented_runs import FakeRun, stage_of
from tests.growctl.runs import CONTROL, SCHEDULE, run_here, write_schedule
from tests.growctl.runs.hand_made import HandMade, printed
from tests.stages.test_metrics import EVALUATION

SWEPT = ("learning_rate.peak=2e-3,4e-3", "seed=0,1")
NAMES = [f"tiny-peak-{rate}-seed-{seed}" for rate in ("0.002", "0.004") for seed in (0, 1)]


VALUES = st.one_of(
    st.integers(), st.floats(allow_nan=False), st.text(max_size=60), st.booleans(), st.none(), st.lists(st.integers())
)


def test_every_combination_is_one_point_and_the_last_key_changes_fastest():
    points = grid(["learning_rate.peak=2e-3,4e-3", "training.batch_size=8"], "0,1")
    assert [point.values for point in points] == [
        {"learning_rate.peak": rate, "seed": seed} for rate in (0.002, 0.004) for seed in (0, 1)
    ]
    assert points[1].overrides == ("learning_rate.peak=0.002", "training.batch_size=8", "seed=1")


@pytest.mark.parametrize(
    ("override", "listed"),
    [
        ("seed=range(0,3)", [0, 1, 2]),
        ("seed=choice(4,7)", [4, 7]),
        ("seed=sort(3,1,2)", [1, 2, 3]),
        ("++seed=1,2", [1, 2]),
        ("optimizer.betas=[0.9,0.95],[0.9,0.99]", [[0.9, 0.95], [0.9, 0.99]]),
        ("stages.0.train_tokens=200k,1M", ["200k", "1M"]),
        ("data.source='a,b',c", ["a,b", "c"]),
        ("releases=true,null", [True, None]),
    ],
)
def test_all_of_hydras_lists_are_read_by_hydra(override, listed):
    assert [value for point in grid([override]) for value in point.values.values()] == listed


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "no key has several values; write learning_rate.peak=2e-3,4e-3 or seed=range(0,3), or train a single run"),
        (["seed=1", "training.batch_size=8"], "no key has several values"),
        (["seed=0,1,0"], "override 'seed=0,1,0': must give one or more values, each of them once"),
        (["learning_rate.peak=2e-3,0.002"], "each of them once"),
        (["seed=0,1", "seed=2,3"], "seed is given twice; give all its values at once"),
        (["seed=3", "--seeds=0,1"], "seed is given twice"),
        (["learning_rate.peak=interval(0,1)"], "the values cannot be listed"),
        (["name=a,b"], "name=...: the runs are named after the swept keys; name them all with --name"),
        (["seed=range(5,5)"], "must give one or more values"),
        (["seed=range(0,5)"], "this would train more than 4 runs; give fewer values"),
        (["seed=0,1", "training.batch_size=4,8,16"], "this would train more than 4 runs"),
        (["seed=range(0,100000000)"], "this would train more than 4 runs"),
    ],
)
def test_what_is_no_grid_gets_one_message(monkeypatch, overrides, message):
    monkeypatch.setattr(sets, "MOST_RUNS", 4)
    seeds = [text.removeprefix("--seeds=") for text in overrides if text.startswith("--")]
    with pytest.raises(SweepError) as error:
        grid([text for text in overrides if not text.startswith("--")], *seeds)
    assert message in str(error.value)
    assert len(grid(["seed=range(0,4)"])) == len(grid(["seed=0,1", "training.batch_size=4,8"])) == 4


@pytest.mark.parametrize(
    ("point", "name"),
    [
        ({"learning_rate.peak": 0.002, "seed": 0}, "quick-peak-0.002-seed-0"),
        ({"learning_rate.peak": 1e-5}, "quick-peak-1e-05"),
        ({"learning_rate.peak": 0.1 + 0.2}, "quick-peak-0.3"),
        ({"training.ladder_flops": 1e20}, "quick-ladder_flops-1e20"),
        ({"training.ladder_tokens": "1.5B"}, "quick-ladder_tokens-1.5B"),
        ({"optimizer.betas": [0.9, 0.95]}, "quick-betas-0.9-0.95"),
        ({"data.source": "/texts/of/ours.jsonl"}, "quick-source-texts-of-ours.jsonl"),
        ({"releases": None}, "quick-releases-null"),
        ({"stages.0.train_steps": 1, "stages.1.train_steps": 2}, "quick-stages.0.train_steps-1-stages.1.train_steps-2"),
        ({"optimizer.betas.0": 0.9, "growth.ramp": 0.1}, "quick-optimizer.betas.0-0.9-ramp-0.1"),
        ({"data": "a", "other.data": "b"}, "quick-data-a-other.data-b"),
    ],
)
def test_a_name_says_what_sets_the_run_apart_in_keys_as_short_as_they_can_be_told_apart(point, name):
    assert run_names("quick", [point]) == [name]


@settings(max_examples=50)
@given(
    st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=8, unique_by=repr), st.from_regex(RUN_NAME, fullmatch=True)
)
@example([(1, 2)], "a" * 100)
@example([("a/b", 0), ("a-b", 0)], "quick")
def test_whatever_is_swept_the_names_are_allowed_and_differ(rows, group):
    names = run_names(group, [{"model.a": first, "b": second} for first, second in rows])
    assert all(RUN_NAME.fullmatch(name) for name in names)
    assert len(set(names)) == len(rows)


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=8, unique=True))
def test_a_longer_list_keeps_the_names_of_the_runs_that_were_there(seeds):
    points = [{"seed": seed} for seed in seeds]
    assert run_names("quick", points)[:-1] == run_names("quick", points[:-1])


class Runner:
    """Stands in for the runner: finishes runs at once, except those that are to fail or be stopped."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.ends: dict[str, Callable[[], None]] = {}

    def __call__(self, request: LadderRequest, screen: object) -> None:
        name = request.ladder.name
        self.started.append(name)
        shutil.rmtree(request.directory(request.ladder), ignore_errors=True)
        ladder = HandMade(request.runs_dir, name, text=self.text(request.ladder.schedule))
        request.record_choices()
        if end := self.ends.pop(name, None):
            end()
        self.finish(ladder, request.ladder)
        for control in request.controls():
            text = self.text(control.schedule)
            self.finish(HandMade(request.runs_dir, control.name, text=text, control=control.control), control)

    @staticmethod
    def finish(run: HandMade, request: RunRequest) -> None:
        for index, stage in enumerate(request.schedule.stages):
            run.finishes(f"{index}-{stage.name}", stage.train_steps or 1)

    @staticmethod
    def text(schedule) -> str:
        return "".join(line for line in schedule_yaml(schedule).splitlines(True) if not line.startswith("name:"))


def fail() -> None:
    raise RunFailed("stage small failed: a bad day")


def stop() -> None:
    raise Stopped(signal.SIGINT)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Runner:
    runner = Runner()
    monkeypatch.setattr("growctl.run.runner.run", runner)
    return runner


@pytest.fixture
def schedule(tmp_path: Path) -> Path:
    return write_schedule(tmp_path)


def sweep(schedule: Path, *arguments: object, command: str = "sweep", expect: int = 0) -> tuple[str, str]:
    return run_here(command, schedule, *arguments, "--runs-dir", schedule.parent / "runs", expect=expect)


def seeds(schedule: Path, seeds: str, *arguments: object, expect: int = 0) -> tuple[str, str]:
    return sweep(schedule, "--seeds", seeds, *arguments, command="run", expect=expect)


def states(out: str) -> list[str]:
    """The states in the table that ends `out`."""
    rows = out[out.rindex("state") :].splitlines()
    return [row.split(maxsplit=1)[1].partition("  ")[0] for row in rows if row.startswith("  tiny-")]


@pytest.mark.slow
def test_a_sweep_trains_the_runs_of_its_grid_in_order_and_lists_how_they_ended(schedule, runner):
    out, err = sweep(schedule, *SWEPT)
    assert (runner.started, err) == (NAMES, "")
    assert states(out) == ["finished"] * 4
    assert f"growctl report tiny --runs-dir {schedule.parent}/runs" in out
    (schedule.parent / "runs/tiny").mkdir()  # a run, which the report would take the name for
    out, _ = sweep(schedule, *SWEPT)
    assert f"growctl report {' '.join(NAMES)} --runs-dir" in out


@pytest.mark.slow
def test_a_run_that_fails_stops_no_other_and_a_longer_list_skips_what_is_finished(schedule, runner):
    runner.ends["tiny-seed-1"] = fail
    out, err = seeds(schedule, "0,1,2", expect=1)
    assert runner.started == ["tiny-seed-0", "tiny-seed-1", "tiny-seed-2"]
    assert "tiny-seed-1: failed: stage small failed: a bad day" in out
    assert err == "growctl: 1 of 3 runs failed: tiny-seed-1; run the same command again to try again\n"
    assert states(out) == ["finished", "failed", "finished"]
    runner.started.clear()
    out, _ = seeds(schedule, "0,1,2,3")
    assert (runner.started, states(out)) == (["tiny-seed-1", "tiny-seed-3"], ["finished"] * 4)
    assert "tiny-seed-2: finished already, skipped (run 3 of 4)" in out


@pytest.mark.slow
def test_a_signal_stops_the_set_and_the_same_command_resumes_it(schedule, runner):
    runner.ends["tiny-seed-1"] = stop
    out, err = seeds(schedule, "0,1,2", expect=130)
    assert runner.started == ["tiny-seed-0", "tiny-seed-1"]
    assert "stopped in tiny-seed-1, run 2 of 3" in out
    assert err == "growctl: interrupted; run the same command again to resume\n"
    runner.started.clear()
    out, _ = seeds(schedule, "0,1,2", "--dry-run")
    assert states(out) == ["finished", "stopped", "not started"]
    seeds(schedule, "0,1,2")
    assert runner.started == ["tiny-seed-1", "tiny-seed-2"]


@pytest.mark.slow
def test_each_seed_is_a_run_of_its_own_whose_controls_may_be_left_out(tmp_path, runner):
    schedule = write_schedule(tmp_path, SCHEDULE + CONTROL)
    seeds(schedule, "0,1", "--name", "mine", "--no-controls")
    assert [run.name for run in find_status(tmp_path / "runs")] == ["mine-seed-0", "mine-seed-1"]
    seeds(schedule, "0,1", "--name", "mine", "--controls")
    found = find_status(tmp_path / "runs")
    assert len(found) == 6
    ladders = [(run.group, run.overrides) for run in found if run.control is None]
    assert ladders == [("mine", {"seed": 0}), ("mine", {"seed": 1})]
    assert load_schedule(str(tmp_path / "runs/mine-seed-1/schedule.yaml")).seed == 1


def test_json_lists_every_run_with_state_loss_and_reason_and_progress_goes_to_stderr(tmp_path, runner):
    schedule = write_schedule(tmp_path, SCHEDULE + CONTROL)
    runner.ends["tiny-seed-1"] = fail
    out, err = sweep(schedule, "seed=0,1", "--json", expect=1)
    document = json.loads(out)
    assert "tiny-seed-1: failed: stage small failed: a bad day" in err
    assert (document["group"], document["runs_dir"], len(document["runs"])) == ("tiny", f"{tmp_path}/runs", 6)
    first, control, _, failed, *_ = document["runs"]
    assert (first["name"], first["overrides"], first["state"]) == ("tiny-seed-0", {"seed": 0}, "finished")
    assert first["final_loss"] == control["final_loss"] == EVALUATION["loss"]
    assert (control["control_of"], control["flops_left"]) == ("tiny-seed-0", 0)
    reason = "stage small failed: a bad day"
    assert (failed["name"], failed["state"], failed["reason"]) == ("tiny-seed-1", "failed", reason)
    assert (failed["final_loss"], failed["flops_left"]) == (None, failed["flops"])


def test_a_dry_run_lists_what_would_be_trained_and_writes_nothing(tmp_path, runner):
    schedule = write_schedule(tmp_path, SCHEDULE + CONTROL)
    out, _ = sweep(schedule, SWEPT[0], "--seeds", "range(0,2)", "--dry-run", "--json")
    runs = json.loads(out)["runs"]
    assert [(run["name"], run["state"]) for run in runs[::3]] == [(name, "not started") for name in NAMES]
    assert all(run["flops"] == run["flops_left"] > 0 and run["tokens"] > 0 for run in runs)
    ladder, _, half, *_ = (run["flops"] for run in runs)
    assert half == pytest.approx(ladder / 2, rel=0.05)
    out, _ = sweep(schedule, *SWEPT, "--dry-run")
    assert states(out) == ["not started"] * 4
    [total] = [float(line.split()[-1]) for line in out.splitlines() if line.startswith("  total")]
    assert total == pytest.approx(sum(run["flops"] for run in runs), rel=0.01)
    assert (runner.started, list(tmp_path.iterdir())) == ([], [schedule])


def test_a_set_whose_schedule_has_changed_is_refused_before_any_run_starts(schedule, runner):
    seeds(schedule, "1")
    runner.started.clear()
    _, err = seeds(schedule, "0,1", "learning_rate.warmup_steps=6", expect=2)
    assert runner.started == []
    assert "learning_rate.warmup_steps = 6, but it was started with 5; choose another name" in err


def test_a_run_resumed_by_itself_stays_in_its_set_whose_damaged_record_is_one_message(schedule, runner):
    runner.ends["tiny-seed-0"] = stop
    seeds(schedule, "0,1", expect=130)
    runs = schedule.parent / "runs"
    asked = LadderRequest.of(load_schedule(str(runs / "tiny-seed-0/schedule.yaml")), "x", runs, None)
    assert asked.ladder.run_set == RunSet("tiny", {"seed": 0})
    asked.record_choices()
    assert read_run_set(RunPaths(runs / "tiny-seed-0")) == RunSet("tiny", {"seed": 0})
    (runs / "tiny-seed-0/.run_set.json").write_text("{")
    _, err = sweep(schedule, "seed=0", "--name", "tiny-seed-0", command="run", expect=2)
    assert "runs/tiny-seed-0/.run_set.json, which names the set of runs that this run belongs to, cannot be read" in err
    assert [run.name for run in find_status(runs)] == ["tiny-seed-0"]


def test_ledger_report_and_status_keep_and_name_the_set_that_a_run_began_in(tmp_path):
    stage, expected = stage_of("small", 10**6, 10), [("a", {"seed": 1}), (None, {})]
    run = FakeRun(tmp_path, "a-seed-1", [stage], run_set=("a", {"seed": 1})).train(0, 3.0)
    other = FakeRun(tmp_path, "b", [stage]).train(0, 3.0)
    with Ledger(run.path) as ledger:
        ledger.record_run(other.entry, [stage])  # recorded again as a run of its own
    assert [(run.group, run.overrides) for run in report_document(find_runs(tmp_path)).runs] == expected
    assert [(run.group, run.overrides) for run in find_status(tmp_path)] == expected
    assert "of the set a (seed=1)" in printed(tmp_path, "a-seed-1")
