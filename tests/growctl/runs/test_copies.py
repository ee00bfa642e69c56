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
from tests.growctl.runs import SCHEDULE, run_here
from tests.growctl.runs.hand_made import ONE_STAGE, HandMade, only
from tests.growctl.runs.stored import change

SCRATCH = "tiny-control-tokenformer-scratch"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A runs directory with the run `tiny`, which has finished its first stage and stopped in its second."""
    ladder = HandMade(tmp_path / "runs", text=SCHEDULE + "controls: [{kind: tokenformer-scratch}]\n")
    ladder.finishes("0-small", 30)
    ladder.trains("1-large", 10)
    return tmp_path / "runs"


def with_control(runs: Path, ladder: str = "tiny") -> None:
    """Adds a control of `ladder`, which is `tiny` or a copy of it, that has stopped."""
    one_stage = ONE_STAGE.replace("train_steps: 60", "train_steps: 82")  # equal FLOPs
    ladder_id = find_runs(runs)[0].run_id
    HandMade(runs, SCRATCH.replace("tiny", ladder), one_stage, "tokenformer-scratch", ladder_id).trains("0-large", 10)


def resumed(status: RunStatus) -> str:
    """What the command that status prints would start."""
    assert status.resume_command is not None
    return run_here(*shlex.split(status.resume_command)[1:], "--dry-run")[0]


def test_the_command_for_a_renamed_or_copied_run_resumes_that_one(runs: Path, tmp_path: Path) -> None:
    (runs / "tiny").rename(runs / "b")
    shutil.copytree(runs / "b", runs / "copy")
    shutil.copytree(runs / "b", tmp_path / "else where/tiny")
    found = {status.name: status for status in (*find_status(runs), *find_status(tmp_path / "else where"))}
    assert found["b"].state == "stopped"
    for name, folder in {"b": runs, "copy": runs, "tiny": tmp_path / "else where"}.items():
        text = resumed(found[name])
        assert text.startswith(f"# {name}: ladder\n\n## stage small: done\n\n## stage large: 1 rank\n")
        assert f"{folder}/{name}/stages/1-large/spec.json" in text


def test_the_controls_of_a_renamed_run_stay_its_controls(runs: Path) -> None:
    (runs / "tiny").rename(runs / "b")
    with_control(runs)
    ladder, control = find_status(runs)
    assert (control.name, control.control_of, control.resume_command) == (SCRATCH, "b", ladder.resume_command)
    assert f"{runs}/{SCRATCH}/stages/0-large/spec.json" in resumed(control)


@pytest.mark.parametrize("copy", ["a", "z"])
def test_a_copy_has_controls_of_its_own_and_takes_its_originals_only_once_that_is_gone(runs: Path, copy: str) -> None:
    own = SCRATCH.replace("tiny", copy)
    with_control(runs)
    shutil.copytree(runs / "tiny", runs / copy)
    beside = {status.name: status.control_of for status in find_status(runs)}
    assert beside == {copy: None, own: copy, "tiny": None, SCRATCH: "tiny"}
    with_control(runs, copy)
    shutil.rmtree(runs / "tiny")
    _, *controls = find_status(runs, [copy])
    assert {control.name: control.control_of for control in controls} == {own: copy, SCRATCH: copy}
    assert f"{runs}/{own}/stages/0-large/spec.json" in resumed(controls[0])


def test_a_run_is_called_as_its_folder_unless_a_name_is_given(runs: Path) -> None:
    (runs / "tiny").rename(runs / "1e5")
    path = str(runs / "1e5/schedule.yaml")
    assert load_schedule(path, runs_dir=runs).name == "1e5"
    assert load_schedule(path, ["name=other"], runs_dir=runs).name == "other"
    (runs / "1e5").rename(runs / "tiny (copy)")
    with pytest.raises(ScheduleError, match=r"named as its folder, and 'tiny \(copy\)' is not allowed: letters"):
        load_schedule(str(runs / "tiny (copy)/schedule.yaml"), runs_dir=runs)
    assert find_status(runs)[0].resume_command is None


@pytest.fixture
def finished(tmp_path: Path) -> HandMade:
    """A finished run without controls."""
    made = HandMade(tmp_path / "whole")
    for stage, steps in {"0-small": 30, "1-large": 60}.items():
        made.finishes(stage, steps)
        made.books(stage)
    assert only(tmp_path / "whole").state == "finished"
    assert not list(remarks(find_runs(tmp_path / "whole")[0]))
    return made


@pytest.mark.parametrize(
    ("lost", "state", "is_remarked"),
    [
        ("stages/1-large/final", "stopped", True),
        ("stages/0-small", "stopped", False),
        ("stages", "stopped", False),
        ("stages/1-large/metrics.jsonl", "damaged", True),
        ("schedule.yaml", "damaged", False),
    ],
)
def test_an_incomplete_copy_is_not_finished(finished: HandMade, lost: str, state: str, is_remarked: bool) -> None:
    path, runs = finished.directory / lost, finished.directory.parent
    change(path, None)
    status = only(runs)
    assert (status.state, status.resume_command is None) == (state, state == "damaged"), "no command repairs records"
    assert str(path) in " ".join(status.notes)
    said = " ".join(remarks(find_runs(runs)[0]))
    assert (f"Incomplete: {path} is missing. If this is a copy, copy the run again." in said) is is_remarked
