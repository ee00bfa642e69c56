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
from tests.growctl.runs import CONTROL, SCHEDULE, run_here, write_schedule
from tests.growctl.runs.hand_made import HandMade, printed

LEFT_OUT = "controls were left out: --no-controls"
SCRATCH = "tiny-control-tokenformer-scratch"


def request(runs: Path, with_controls: bool | None, until: str | None = None, text: str = CONTROL) -> LadderRequest:
    """A request for the run `tiny`, which has two controls."""
    schedule = load_schedule(str(write_schedule(runs.parent, SCHEDULE + text)))
    return LadderRequest.of(schedule, "tiny", runs, None, with_controls, until=until)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A runs directory with the finished run `tiny`, which has two controls."""
    ladder = HandMade(tmp_path / "runs", text=SCHEDULE + CONTROL)
    ladder.finishes("0-small", 30)
    ladder.finishes("1-large", 60)
    return tmp_path / "runs"


def test_the_last_command_that_said_so_decides_whether_controls_are_trained(runs: Path) -> None:
    for with_controls, num_controls in [(None, 2), (False, 0), (None, 0), (True, 2), (None, 2)]:
        asked = request(runs, with_controls)
        asked.record_choices()
        assert len(asked.controls()) == num_controls
    request(runs, False, text="").record_choices()  # there are none to leave out
    assert len(request(runs, None).controls()) == 2
    for with_controls in (False, None):
        request(runs, with_controls, until="small").record_choices()
        assert request(runs, None).controls() == []
    schedule = load_schedule(str(runs / "tiny/schedule.yaml"))
    assert len(LadderRequest.of(schedule, "tiny", runs, "other").controls()) == 2


def test_the_report_names_controls_that_are_still_to_come_until_they_are_left_out(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    HandMade(runs, "other")
    read: list[str] = []
    inner = status_runs._read_run
    monkeypatch.setattr(status_runs, "_read_run", lambda run: (read.append(run.directory.name), inner(run))[1])
    found = [run for run in find_runs(runs) if run.name == "tiny"]
    assert len(with_controls_to_come(found, runs)[0].controls_to_come) == 2
    HandMade(runs, SCRATCH, control="tokenformer-scratch")
    found = [run for run in find_runs(runs) if run.name != "other"]
    arms = results(with_controls_to_come(found, runs)).ladders[0].arms
    [one, other] = [set(arm.absent.values()) for arm in arms if arm.control]
    assert one in ({"running"}, {"stopped"}, {"not finished"})
    assert other == {"not started"}
    assert "other" not in read, "it says nothing of controls to come"
    request(runs, False).record_choices()
    [ladder] = [run for run in with_controls_to_come(find_runs(runs), runs) if run.name == "tiny"]
    assert [control.name for control in ladder.controls_to_come] == [SCRATCH]
    assert list(remarks(ladder)) == ["Controls were left out: --no-controls."]


def test_status_says_it_and_lists_only_controls_that_were_started(runs: Path) -> None:
    assert len(find_status(runs)) == 3
    request(runs, False).record_choices()
    [ladder] = find_status(runs)
    assert (ladder.state, ladder.resume_command) == ("finished", None)
    said = printed(runs)
    assert f"tiny: {LEFT_OUT}; `growctl run` with --controls trains them" in said
    assert "to resume" not in said
    HandMade(runs, SCRATCH, text=SCHEDULE, control="tokenformer-scratch").trains("0-small", 10)
    _, control = find_status(runs)
    assert control.name == SCRATCH
    assert control.resume_command == f"growctl run {runs}/tiny/schedule.yaml --runs-dir {runs} --controls"


def test_the_next_command_says_first_that_it_trains_no_controls(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request(runs, False).record_choices()
    command = ("run", runs / "tiny/schedule.yaml", "--runs-dir", runs)
    said = f"tiny: its {LEFT_OUT}; to train them, add --controls\n"
    out, err = run_here(*command, "--dry-run")
    assert (err, "control" in out) == (said, False)
    out, err = run_here(*command, "--dry-run", "--controls")
    assert (err, out.count("control (")) == ("", 2)
    monkeypatch.setattr("growctl.run.runner.run", lambda request, screen: None)
    out, err = run_here(*command)
    assert (out.startswith(said), err) == (True, "")
