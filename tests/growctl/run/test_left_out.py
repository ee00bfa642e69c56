"""What a command leaves out of a run: later stages with `--until`, controls with `--no-controls`."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from growctl.analysis.results import results
from growctl.cli.dry_run import dry_run_text
from growctl.ladder.load import load_schedule
from growctl.launch.machines import Devices
from growctl.launch.resolve import machines_of
from growctl.report.sections import remarks
from growctl.run.requests import LadderRequest, remaining_bytes
from growctl.run.slurm_jobs import nothing_to_submit, plan_jobs
from growctl.runs import status as status_runs
from growctl.runs.directory import RunError
from growctl.runs.find import find_runs
from growctl.runs.status import find_status, with_controls_to_come
from growctl.runs_dir import RunPaths
from tests.growctl.runs import CONTROL, SCHEDULE, final_hashes, run, run_here, write_schedule
from tests.growctl.runs.hand_made import HandMade, printed
from tests.stages.checkpoints import write_checkpoint

CPU = Devices(1, "cpu", False)
SLURM = ("launch.cluster=slurm", "launch.nodes=[1,2]", "launch.devices=1")
LEFT_OUT = "controls were left out: --no-controls"
SCRATCH = "tiny-control-tokenformer-scratch"


def request(
    runs: Path, with_controls: bool | None, until: str | None = None, text: str = CONTROL, overrides: Sequence[str] = ()
) -> LadderRequest:
    """A request for the run `tiny` of the stages `small` and `large`, which has two controls."""
    schedule = load_schedule(str(write_schedule(runs.parent, SCHEDULE + text)), overrides)
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


def test_an_unknown_stage_is_rejected_with_the_nearest_name(tmp_path):
    with pytest.raises(RunError, match=r"--until 'smal': .* stages are small, large; did you mean 'small'\?"):
        request(tmp_path / "runs", True, "smal")


def test_a_dry_run_shows_neither_later_stages_nor_controls(tmp_path):
    text = dry_run_text(request(tmp_path / "runs", True, "small"))
    assert "## stage small" in text
    assert not {"large", "control"} & set(text.split())


@pytest.mark.parametrize(("job", "name"), [("ladder", "tiny"), ("stage", "tiny.small")])
def test_only_the_first_stages_are_submitted_until_they_are_done(tmp_path, job, name):
    asked = request(tmp_path / "runs", True, "small", overrides=[*SLURM, f"launch.slurm.job={job}"])
    [submitted] = plan_jobs(asked, asked.checked(machines_of(asked.ladder.schedule)))
    assert (submitted.name, submitted.nodes, submitted.last_stage) == (name, 1, 0)
    assert [plan.name for plan in submitted.stages] == ["small"]
    write_checkpoint(RunPaths(tmp_path / "runs/tiny").stage(0, "small").final)
    assert plan_jobs(asked, [asked.ladder]) == []
    assert nothing_to_submit(asked) == "tiny: done up to stage small; there is nothing to submit"


def test_space_is_needed_only_for_the_stages_that_will_be_trained(tmp_path):
    asked = request(tmp_path / "runs", True)
    small, both = (remaining_bytes(asked.ladder, tmp_path / "runs/tiny", CPU, last) for last in (0, 1))
    assert 0 < small < both == remaining_bytes(asked.ladder, tmp_path / "runs/tiny", CPU)


@pytest.mark.trains
def test_the_run_stops_after_the_stage_and_the_same_command_without_until_ends_in_the_same_bits(two_ranks, runs_dir):
    schedule, done = two_ranks
    shutil.copy(schedule, runs_dir.parent / "tiny.yaml")
    with (runs_dir.parent / "tiny.yaml").open("a") as file:
        file.write("controls: [{kind: tokenformer-scratch}]\n")
    command = ("run", runs_dir.parent / "tiny.yaml", "launch.devices=2", "--runs-dir", runs_dir)
    out, _ = run(*command, "--until", "small")
    assert "Trained up to stage small. To train the rest, run the same command without --until." in out
    assert sorted(path.name for path in runs_dir.glob("tiny*/stages/*")) == ["0-small"]
    run(*command, "--no-controls")
    assert final_hashes(runs_dir / "tiny") == final_hashes(done / "tiny")
