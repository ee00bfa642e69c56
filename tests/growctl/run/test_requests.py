"""What a command may ask of a run that has begun: the same result, with fewer stages or no controls for now."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from growctl.analysis.results import results
from growctl.cli.dry_run import dry_run_text
from growctl.ladder.controls import plan_controls
from growctl.ladder.load import load_schedule
from growctl.launch.machines import Devices
from growctl.launch.resolve import machines_of
from growctl.report.sections import remarks
from growctl.run.requests import LadderRequest, first_difference, remaining_bytes, schedule_yaml
from growctl.run.slurm_jobs import nothing_to_submit, plan_jobs
from growctl.runs import status as status_runs
from growctl.runs.find import find_runs
from growctl.runs.status import find_status, with_controls_to_come
from growctl.runs_dir import RunPaths
from growctl.schedule.blocks import Schedule
from tests.growctl.ladders import ladder
from tests.growctl.runs import CONTROL, SCHEDULE, final_hashes, run, run_here, write_schedule
from tests.growctl.runs.hand_made import HandMade, printed
from tests.stages.checkpoints import write_checkpoint

CPU = Devices(1, "cpu", False)
SLURM = ("launch.cluster=slurm", "launch.nodes=[1,2]", "launch.devices=1")
LEFT_OUT = "controls were left out: --no-controls"
SCRATCH = "tiny-control-tokenformer-scratch"
HUGE = "{name: huge, attention_tokens: 24, ffn_tokens: 60, train_steps: 40}"
THREE = ", ".join([*re.findall(r"- (\{name: .*\})", SCHEDULE), HUGE])


def request(
    runs: Path, with_controls: bool | None, until: str | None = None, text: str = CONTROL, overrides: Sequence[str] = ()
) -> LadderRequest:
    """A request for the run `tiny` of the stages `small` and `large`, which has two controls."""
    schedule = load_schedule(str(write_schedule(runs.parent, SCHEDULE + text)), overrides)
    return LadderRequest.of(schedule, "tiny", runs, None, with_controls, until=until)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A runs directory with the finished run `tiny`, which has two controls."""
    made = HandMade(tmp_path / "runs", text=SCHEDULE + CONTROL)
    made.finishes("0-small", 30)
    made.finishes("1-large", 60)
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


def test_the_report_names_controls_to_come_until_they_are_left_out(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    HandMade(runs, "other")
    read: list[str] = []
    inner = status_runs._read_run
    monkeypatch.setattr(status_runs, "_read_run", lambda run: (read.append(run.directory.name), inner(run))[1])
    found = [run for run in find_runs(runs) if run.name == "tiny"]
    assert len(with_controls_to_come(found, runs)[0].controls_to_come) == 2
    HandMade(runs, SCRATCH, control="tokenformer-scratch")
    found = [run for run in find_runs(runs) if run.name != "other"]
    arms = results(with_controls_to_come(found, runs)).ladders[0].arms
    [other, one] = [set(arm.absent.values()) for arm in arms if arm.control]
    assert one in ({"running"}, {"stopped"}, {"not finished"})
    assert other == {"not started"}
    assert read
    assert "other" not in read, "it says nothing of controls to come"
    request(runs, False).record_choices()
    [tiny] = [run for run in with_controls_to_come(find_runs(runs), runs) if run.name == "tiny"]
    assert [control.name for control in tiny.controls_to_come] == [SCRATCH]
    assert list(remarks(tiny)) == ["Controls were left out: --no-controls."]


def test_status_says_it_and_lists_only_controls_that_were_started(runs: Path) -> None:
    assert len(find_status(runs)) == 3
    request(runs, False).record_choices()
    [tiny] = find_status(runs)
    assert (tiny.state, tiny.resume_command) == ("finished", None)
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


def test_a_dry_run_shows_neither_later_stages_nor_controls(tmp_path):
    text = dry_run_text(request(tmp_path / "runs", True, "small"))
    assert "## stage small" in text
    assert [word for word in ("large", "control") if word in text] == []


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
    own = write_schedule(runs_dir.parent, schedule.read_text() + "controls: [{kind: tokenformer-scratch}]\n")
    command = ("run", own, "launch.devices=2", "--runs-dir", runs_dir)
    out, _ = run(*command, "--until", "small")
    assert "Trained up to stage small. To train the rest, run the same command without --until." in out
    assert sorted(path.name for path in runs_dir.glob("tiny*/stages/*")) == ["0-small"]
    run(*command, "--no-controls")
    assert final_hashes(runs_dir / "tiny") == final_hashes(done / "tiny")


def given(runs: Path, *arguments: str, expect: int = 0) -> str:
    """What `growctl run` says of the run that has begun."""
    schedule = write_schedule(runs.parent, SCHEDULE + CONTROL)
    return run_here("run", schedule, "--runs-dir", runs, *arguments, "--dry-run", expect=expect)[1]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("stages.1.train_steps=90", "stages.1.train_steps = 90, but it was started with 60; "),
        ("stages.0.release={decay: 1.0}", 'stages.0.release = {"decay": 1.0}, but it was started with null'),
        ("data.document_mask=true", "data.document_mask = true, but it was started with"),
        ("data.packing=best_fit", "data.packing = 'best_fit', but it was started with"),
        (f"stages=[{THREE}]", "it has the stages small, large, and this schedule has small, large, huge"),
    ],
)
def test_a_schedule_with_another_result_is_refused(runs: Path, override: str, said: str) -> None:
    message = given(runs, override, expect=2)
    assert said in message
    assert "choose another name with --name" in message


@pytest.mark.parametrize(
    "arguments",
    [("stages.1.train_steps=90", "--name", "tiny-2"), ("samples.prompts=[x]",), ("trackers=[tensorboard,mlflow]",)],
    ids=["under another name", "prompts", "trackers"],
)
def test_what_does_not_change_the_result_may_change(runs: Path, arguments: tuple[str, ...]) -> None:
    assert "was started with" not in given(runs, *arguments)


def test_a_control_with_another_budget_is_refused(runs: Path) -> None:
    control = HandMade(runs, "tiny-control-decoder-scratch-0.5x", control="decoder-scratch").directory
    *_, planned = plan_controls(load_schedule(str(runs / "tiny/schedule.yaml")))
    stages = [planned.schedule.stages[0].model_copy(update={"train_steps": 7})]
    (control / "schedule.yaml").write_text(schedule_yaml(planned.schedule.model_copy(update={"stages": stages})))
    assert f"{control} keeps its schedule: stages.0.train_steps = " in given(runs, expect=2)


def test_another_spelling_of_the_same_text_and_what_was_read_from_it_are_no_difference(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "texts")

    def reading(source: str) -> Schedule:
        return ladder(data={"source": source, "vocab_size": 300})

    first = reading(f"{tmp_path}/texts")
    for same in ("linked", "./texts/", "linked/../texts"):
        assert first_difference(first, reading(f"{tmp_path}/{same}")) is None
    assert first_difference(first, reading(f"file://{tmp_path}/texts")) is None
    assert str(first_difference(first, reading(f"{tmp_path}/other"))).startswith("data.source = ")
    data = first.data.model_copy(update={"attended_tokens": {"16": 20.0}, "tokenizer_vocab_size": 300})
    assert first_difference(first, first.model_copy(update={"data": data})) is None
