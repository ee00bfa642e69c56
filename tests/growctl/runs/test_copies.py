"""Renamed runs and copies: a run is named as its folder, and what a copy lacks is said."""

import shlex
import shutil
from pathlib import Path

import pytest

from growctl.ladder.load import load_schedule
from growctl.report.sections import remarks
from growctl.runs.find import find_runs
from growctl.runs.status import RunStatus, find_status
from growctl.schedule.errors import ScheduleError
from tests.growctl.runs import CONTROL, SCHEDULE, run_here
from tests.growctl.runs.hand_made import HandMade, only, printed

SCRATCH = "tiny-control-tokenformer-scratch"
ONE_CONTROL = "controls: [{kind: tokenformer-scratch}]\n"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A runs directory with the run `tiny`, which has finished its first stage and stopped in its second."""
    ladder = HandMade(tmp_path / "runs", text=SCHEDULE + ONE_CONTROL)
    ladder.finishes("0-small", 30)
    ladder.trains("1-large", 10)
    return tmp_path / "runs"


def with_control(runs: Path, ladder: str = "tiny") -> None:
    """Adds a control of `ladder`, which is `tiny` or a copy of it, that has stopped."""
    one_stage = "".join(line for line in SCHEDULE.splitlines(keepends=True) if "name: small" not in line)
    one_stage = one_stage.replace("train_steps: 60", "train_steps: 82")  # equal FLOPs
    ladder_id = find_runs(runs)[0].run_id
    HandMade(runs, SCRATCH.replace("tiny", ladder), one_stage, "tokenformer-scratch", ladder_id).trains("0-large", 10)


def resumed(status: RunStatus) -> str:
    """What the command that status prints would start."""
    assert status.resume_command is not None
    return run_here(*shlex.split(status.resume_command)[1:], "--dry-run")[0]


def test_the_command_for_a_renamed_run_resumes_it(runs: Path) -> None:
    (runs / "tiny").rename(runs / "b")
    status = find_status(runs)[0]
    assert (status.name, status.state) == ("b", "stopped")
    text = resumed(status)
    assert text.startswith("# b: ladder\n\n## stage small: done\n\n## stage large: 1 rank\n")
    assert f"{runs}/b/stages/1-large/spec.json" in text
    assert "tiny" not in text


def test_the_command_for_a_copy_resumes_the_copy_here_and_elsewhere(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "tiny", runs / "b")
    shutil.copytree(runs / "tiny", tmp_path / "elsewhere/tiny")
    copy = next(status for status in find_status(runs) if status.name == "b")
    assert resumed(copy).startswith("# b: ladder\n\n## stage small: done\n")
    [moved, *_] = find_status(tmp_path / "elsewhere")
    assert f"{tmp_path}/elsewhere/tiny/stages/1-large/spec.json" in resumed(moved)


def test_the_controls_of_a_renamed_run_stay_its_controls(runs: Path) -> None:
    with_control(runs)
    (runs / "tiny").rename(runs / "b")
    ladder, control = find_status(runs)
    assert (control.name, control.control_of, control.resume_command) == (SCRATCH, "b", ladder.resume_command)
    text = resumed(control)
    assert f"# {SCRATCH}: control (tokenformer-scratch)" in text
    assert f"{runs}/{SCRATCH}/stages/0-large/spec.json" in text
    assert "b-control" not in text + printed(runs)


def test_a_copy_beside_its_original_does_not_take_the_controls(runs: Path) -> None:
    with_control(runs)
    shutil.copytree(runs / "tiny", runs / "b")
    assert [(status.name, status.control_of) for status in find_status(runs)] == [
        *(("b", None), ("b-control-tokenformer-scratch", "b"), ("tiny", None), (SCRATCH, "tiny"))
    ]


@pytest.mark.parametrize("copy", ["a", "z"])
def test_a_copy_whose_original_is_gone_keeps_its_own_controls(runs: Path, copy: str) -> None:
    shutil.copytree(runs / "tiny", runs / copy)
    with_control(runs)
    with_control(runs, copy)
    shutil.rmtree(runs / "tiny")
    own = SCRATCH.replace("tiny", copy)
    _, *controls = find_status(runs, [copy])
    assert {control.name: control.control_of for control in controls} == {own: copy, SCRATCH: copy}
    assert f"{runs}/{own}/stages/0-large/spec.json" in resumed(controls[0])


def test_a_name_that_is_given_wins_over_the_folder(runs: Path) -> None:
    (runs / "tiny").rename(runs / "1e5")
    path = str(runs / "1e5/schedule.yaml")
    assert load_schedule(path, runs_dir=runs).name == "1e5"
    assert load_schedule(path, ["name=other"], runs_dir=runs).name == "other"
    assert run_here("run", path, "--name", "third", "--runs-dir", runs, "--dry-run")[0].startswith("# third: ladder")


def test_a_schedule_of_the_users_that_is_called_like_a_runs_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "project/stages").mkdir(parents=True)
    path = tmp_path / "project/schedule.yaml"
    path.write_text(f"name: mine\n{SCHEDULE}")
    assert load_schedule(str(path), runs_dir=tmp_path / "runs").name == "mine"


def test_a_run_given_as_a_schedule_is_answered_with_its_schedule(runs: Path) -> None:
    for reference in ("tiny", runs / "tiny"):
        _, err = run_here("run", reference, "--runs-dir", runs, expect=2)
        command = f"growctl run {runs}/tiny/schedule.yaml --runs-dir {runs}"
        assert err.endswith(f": is a run, not a schedule; to resume it: {command}\n")


def test_a_shipped_schedule_wins_over_a_run_of_its_name(runs: Path) -> None:
    (runs / "tiny").rename(runs / "quickstart")
    assert (
        load_schedule("quickstart", runs_dir=runs).data.source
        != load_schedule(str(runs / "quickstart/schedule.yaml"), runs_dir=runs).data.source
    )


def test_a_folder_that_cannot_name_a_run_is_refused(runs: Path) -> None:
    (runs / "tiny").rename(runs / "tiny (copy)")
    with pytest.raises(ScheduleError) as refused:
        load_schedule(str(runs / "tiny (copy)/schedule.yaml"), runs_dir=runs)
    assert "a run is named as its folder, and 'tiny (copy)' is not allowed: letters, digits" in str(refused.value)
    assert find_status(runs)[0].resume_command is None


@pytest.fixture
def finished(tmp_path: Path) -> HandMade:
    """A finished run without controls."""
    made = HandMade(tmp_path / "whole", text=SCHEDULE)
    for stage, steps in {"0-small": 30, "1-large": 60}.items():
        made.finishes(stage, steps)
        made.books(stage)
    assert only(tmp_path / "whole").state == "finished"
    assert list(remarks(find_runs(tmp_path / "whole")[0])) == []
    return made


@pytest.mark.parametrize(
    ("lost", "state"),
    [
        ("stages/1-large/final", "stopped"),
        ("stages/0-small", "stopped"),
        ("stages", "stopped"),
        ("stages/1-large/metrics.jsonl", "damaged"),
        ("schedule.yaml", "damaged"),
        ("ledger.db", "damaged"),
    ],
)
def test_a_copy_that_lacks_something_is_never_reported_as_finished(finished: HandMade, lost: str, state: str) -> None:
    path = finished.directory / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    status = only(finished.directory.parent)
    assert status.state == state
    assert str(path) in " ".join(status.notes)


def test_no_command_is_shown_for_lost_records_because_none_repairs_them(finished: HandMade) -> None:
    (finished.stage("1-large") / "metrics.jsonl").unlink()
    status = only(finished.directory.parent)
    assert (status.state, status.resume_command) == ("damaged", None)


def test_status_and_report_say_alike_that_a_ledger_is_lost(finished: HandMade) -> None:
    (finished.directory / "ledger.db").unlink()
    status = only(finished.directory.parent)
    why = f"{finished.directory}/ledger.db: there is no ledger here; `growctl run` rebuilds it from metrics.jsonl"
    assert (status.state, status.notes) == ("damaged", (why,))
    for names in ([], ["tiny"]):
        _, err = run_here("report", *names, "--runs-dir", finished.directory.parent, expect=2)
        assert err == f"growctl: {why}\n"


def test_a_truncated_ledger_is_damage(finished: HandMade) -> None:
    ledger = finished.directory / "ledger.db"
    ledger.write_bytes(ledger.read_bytes()[: ledger.stat().st_size // 2])
    status = only(finished.directory.parent)
    assert status.state == "damaged"
    assert str(ledger) in status.notes[0]
    _, err = run_here("report", "tiny", "--runs-dir", finished.directory.parent, expect=2)
    assert str(ledger) in err


@pytest.mark.parametrize("lost", ["final", "metrics.jsonl"])
def test_the_report_says_which_result_is_missing(finished: HandMade, lost: str) -> None:
    path = finished.stage("1-large") / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    [run] = find_runs(finished.directory.parent)
    assert list(remarks(run)) == [
        f"Incomplete: {path} is missing. If this is a copy, copy the run again. The figures of the stage are from the "
        "ledger."
    ]


def test_the_planned_controls_of_a_renamed_run_have_its_name(tmp_path: Path) -> None:
    made = HandMade(tmp_path, text=SCHEDULE + CONTROL)
    made.directory.rename(tmp_path / "b")
    assert [status.name for status in find_status(tmp_path)][1:] == [
        *("b-control-tokenformer-scratch", "b-control-transformer-scratch-0.5x")
    ]
