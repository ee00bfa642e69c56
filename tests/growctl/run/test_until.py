"""`growctl run --until STAGE` trains the first stages of a ladder, in a way that the whole run later resumes."""

import shutil
from pathlib import Path

import pytest

from growctl.cli.dry_run import dry_run_text
from growctl.ladder.load import load_schedule
from growctl.launch.machines import Devices
from growctl.launch.resolve import machines_of
from growctl.run.requests import LadderRequest, remaining_bytes
from growctl.run.slurm_jobs import nothing_to_submit, plan_jobs
from growctl.runs.directory import RunError
from growctl.runs_dir import RunPaths
from tests.growctl.runs import CONTROL, SCHEDULE, final_hashes, run, write_schedule
from tests.stages.checkpoints import write_checkpoint

CPU = Devices(1, "cpu", False)
SLURM = ("launch.cluster=slurm", "launch.nodes=[1,2]", "launch.devices=1")


def request(folder: Path, until: str | None, *overrides: str) -> LadderRequest:
    """A request for a ladder of the stages `small` and `large`, with two controls."""
    schedule = load_schedule(str(write_schedule(folder, SCHEDULE + CONTROL)), overrides)
    return LadderRequest.of(schedule, "tiny", folder / "runs", None, with_controls=True, until=until)


def test_an_unknown_stage_is_rejected_with_the_nearest_name(tmp_path):
    with pytest.raises(RunError, match=r"--until 'smal': .* stages are small, large; did you mean 'small'\?"):
        request(tmp_path, "smal")


def test_a_dry_run_shows_neither_later_stages_nor_controls(tmp_path):
    text = dry_run_text(request(tmp_path, "small"))
    assert "## stage small" in text
    assert not {"large", "control"} & set(text.split())


@pytest.mark.parametrize(("job", "name"), [("ladder", "tiny"), ("stage", "tiny.small")])
def test_only_the_first_stages_are_submitted_until_they_are_done(tmp_path, job, name):
    asked = request(tmp_path, "small", *SLURM, f"launch.slurm.job={job}")
    [submitted] = plan_jobs(asked, asked.checked(machines_of(asked.ladder.schedule)))
    assert (submitted.name, submitted.nodes, submitted.last_stage) == (name, 1, 0)
    assert [plan.name for plan in submitted.stages] == ["small"]
    write_checkpoint(RunPaths(tmp_path / "runs/tiny").stage(0, "small").final)
    assert plan_jobs(asked, [asked.ladder]) == []
    assert nothing_to_submit(asked) == "tiny: done up to stage small; there is nothing to submit"


def test_space_is_needed_only_for_the_stages_that_will_be_trained(tmp_path):
    asked = request(tmp_path, None)
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
