"""`--no-controls` is remembered: by the next command, by status and in the report; `--controls` takes it back."""

from pathlib import Path

import pytest

from growctl.analysis.results import results
from growctl.ladder.load import load_schedule
from growctl.report.sections import remarks
from growctl.run.requests import LadderRequest
from growctl.runs import status as status_runs
from growctl.runs.find import find_runs
from growctl.runs.status import find_status, with_controls_to_come
from growctl.runs_dir import RunPaths
from tests.growctl.invented_runs import FakeRun, stage_of
from tests.growctl.runs import CONTROL, SCHEDULE, run_here, write_schedule
from tests.growctl.runs.hand_made import HandMade, printed

LEFT_OUT = "controls were left out: --no-controls"


def request(folder: Path, with_controls: bool | None, until: str | None = None, text: str = CONTROL) -> LadderRequest:
    """A request for the run `tiny`, which has two controls."""
    schedule = load_schedule(str(write_schedule(folder, SCHEDULE + text)))
    return LadderRequest.of(schedule, "tiny", folder / "runs", None, with_controls, until=until)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A runs directory with the finished run `tiny`, which has two controls."""
    ladder = HandMade(tmp_path / "runs", text=SCHEDULE + CONTROL)
    ladder.finishes("0-small", 30)
    ladder.finishes("1-large", 60)
    return tmp_path / "runs"


def test_the_last_command_that_said_so_decides_whether_controls_are_trained(runs: Path) -> None:
    said = [(None, 2), (False, 0), (None, 0), (True, 2), (None, 2)]
    for with_controls, num_controls in said:
        asked = request(runs.parent, with_controls)
        asked.record_choices()
        assert len(asked.controls()) == num_controls
    request(runs.parent, False, until="small").record_choices()
    assert request(runs.parent, None).controls() == []
    request(runs.parent, None, until="small").record_choices()
    assert request(runs.parent, None).controls() == []


def test_a_schedule_without_controls_leaves_none_out(runs: Path) -> None:
    request(runs.parent, False, text="").record_choices()
    assert len(request(runs.parent, None).controls()) == 2


def test_another_run_of_the_schedule_has_its_controls(runs: Path) -> None:
    request(runs.parent, False).record_choices()
    schedule = load_schedule(str(runs / "tiny/schedule.yaml"))
    assert len(LadderRequest.of(schedule, "tiny", runs, "other").controls()) == 2


def test_the_report_names_controls_that_are_still_to_come_until_they_are_left_out(runs: Path) -> None:
    HandMade(runs, "tiny-control-tokenformer-scratch", control="tokenformer-scratch")
    found = with_controls_to_come(find_runs(runs), runs)
    states = {arm.name: set(arm.absent.values()) for arm in results(found).ladders[0].arms if arm.control}
    assert states.pop("tokenformer-scratch") in ({"running"}, {"stopped"}, {"not finished"})
    assert list(states.values()) == [{"not started"}]
    request(runs.parent, False).record_choices()
    [ladder] = [run for run in with_controls_to_come(find_runs(runs), runs) if run.control is None]
    assert [control.name for control in ladder.controls_to_come] == ["tiny-control-tokenformer-scratch"]


def test_the_report_reads_the_state_of_no_run_that_says_nothing_of_controls_to_come(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    HandMade(runs, "other")
    found = [run for run in find_runs(runs) if run.name == "tiny"]
    read: list[str] = []
    inner = status_runs._read_run
    monkeypatch.setattr(status_runs, "_read_run", lambda run: (read.append(run.directory.name), inner(run))[1])
    assert len(with_controls_to_come(found, runs)[0].controls_to_come) == 2
    assert read == ["tiny"]
    request(runs.parent, False).record_choices()
    assert with_controls_to_come(found, runs)[0].controls_to_come == ()
    assert read == ["tiny"]


def test_status_says_it_and_lists_no_controls_that_were_never_started(runs: Path) -> None:
    assert len(find_status(runs)) == 3
    request(runs.parent, False).record_choices()
    [ladder] = find_status(runs)
    assert (ladder.state, ladder.resume_command) == ("finished", None)
    said = printed(runs)
    assert f"tiny: {LEFT_OUT}; `growctl run` with --controls trains them" in said
    assert "to resume" not in said


def test_a_control_that_had_started_is_resumed_by_asking_for_controls(runs: Path) -> None:
    name = "tiny-control-tokenformer-scratch"
    HandMade(runs, name, text=SCHEDULE, control="tokenformer-scratch").trains("0-small", 10)
    request(runs.parent, False).record_choices()
    _, control = find_status(runs)
    assert control.name == name
    assert control.resume_command == f"growctl run {runs}/tiny/schedule.yaml --runs-dir {runs} --controls"


def test_the_next_command_says_that_it_trains_no_controls(runs: Path) -> None:
    request(runs.parent, False).record_choices()
    out, err = run_here("run", runs / "tiny/schedule.yaml", "--runs-dir", runs, "--dry-run")
    assert err == f"tiny: its {LEFT_OUT}; to train them, add --controls\n"
    assert "control" not in out
    out, err = run_here("run", runs / "tiny/schedule.yaml", "--runs-dir", runs, "--dry-run", "--controls")
    assert err == ""
    assert out.count("control (") == 2


def test_the_report_says_it(tmp_path: Path) -> None:
    FakeRun(tmp_path, "tiny", [stage_of("small", 10**6, 10)]).train(0, 3.0)
    RunPaths(tmp_path / "tiny").no_controls.touch()
    [ladder] = find_runs(tmp_path)
    assert list(remarks(ladder)) == ["Controls were left out: --no-controls."]


def test_the_line_comes_before_those_of_the_run(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request(runs.parent, False).record_choices()
    monkeypatch.setattr("growctl.run.runner.run", lambda request, screen: None)
    out, err = run_here("run", runs / "tiny/schedule.yaml", "--runs-dir", runs)
    assert err == ""
    assert out.startswith(f"tiny: its {LEFT_OUT}; to train them, add --controls\n")
