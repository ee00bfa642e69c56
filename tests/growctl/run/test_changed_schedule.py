"""A run that is given another schedule refuses it."""

from pathlib import Path

import pytest

from growctl.ladder.controls import plan_controls
from growctl.ladder.load import load_schedule
from growctl.run.requests import first_difference, schedule_yaml
from growctl.schedule.blocks import Schedule
from tests.growctl.ladders import ladder
from tests.growctl.runs import CONTROL, SCHEDULE, run_here, write_schedule

LAST = "  - {name: huge, attention_tokens: 24, ffn_tokens: 60, train_steps: 40}\ntraining:"


@pytest.fixture
def schedule(tmp_path: Path) -> Path:
    """The schedule of a run that has begun in `runs` beside it."""
    path = write_schedule(tmp_path, SCHEDULE + CONTROL)
    run = tmp_path / "runs/tiny"
    (run / "stages").mkdir(parents=True)
    (run / "schedule.yaml").write_text(schedule_yaml(load_schedule(str(path))))
    return path


def refusal(schedule: Path, *arguments: str) -> str:
    """The message of `growctl run` for the run that has begun."""
    given = ("--runs-dir", str(schedule.parent / "runs"), *arguments)
    _, err = run_here("run", schedule, *given, "--dry-run", expect=2)
    return err


def test_a_schedule_with_another_result_is_refused_and_trained_under_another_name(schedule: Path) -> None:
    message = refusal(schedule, "stages.1.train_steps=90")
    assert "stages.1.train_steps = 90, but it was started with 60; choose another name with --name" in message
    runs = ("--runs-dir", str(schedule.parent / "runs"))
    run_here("run", schedule, "stages.1.train_steps=90", *runs, "--name", "tiny-2", "--dry-run")


def test_other_stages_are_named(schedule: Path) -> None:
    schedule.write_text(SCHEDULE.replace("training:", LAST))
    message = refusal(schedule)
    assert "it has the stages small, large, and this schedule has small, large, huge" in message


def test_documents_seen_in_another_way_are_a_difference_but_not_what_was_read_from_the_dataset(schedule: Path) -> None:
    for key, value, shown in (("document_mask", "true", "true"), ("packing", "best_fit", "'best_fit'")):
        message = refusal(schedule, f"data.{key}={value}")
        assert f"data.{key} = {shown}, but it was started with" in message
    old = load_schedule(str(schedule))
    counted = old.model_copy(
        update={"data": old.data.model_copy(update={"attended_tokens": {"16": 20.0}, "tokenizer_vocab_size": 300})}
    )
    assert first_difference(old, counted) is None


def test_a_control_with_another_budget_is_refused(schedule: Path) -> None:
    runs = schedule.parent / "runs"
    control = runs / "tiny-control-transformer-scratch-0.5x"
    (control / "stages").mkdir(parents=True)
    *_, planned = plan_controls(load_schedule(str(schedule)))
    stages = [planned.schedule.stages[0].model_copy(update={"train_steps": 7})]
    (control / "schedule.yaml").write_text(schedule_yaml(planned.schedule.model_copy(update={"stages": stages})))
    message = refusal(schedule)
    assert f"{control} keeps its schedule: stages.0.train_steps = " in message


def test_values_are_written_as_in_a_schedule(schedule: Path) -> None:
    message = refusal(schedule, "stages.0.release={decay: 1.0}")
    assert 'stages.0.release = {"decay": 1.0}, but it was started with null' in message


def test_other_prompts_for_text_do_not_stop_a_run(schedule: Path) -> None:
    out, err = run_here("run", schedule, "samples.prompts=[x]", "--runs-dir", schedule.parent / "runs", "--dry-run")
    assert "stages.train.worker" in out
    assert "was started with" not in err


def test_another_spelling_of_the_same_text_is_no_difference(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "texts")

    def reading(source: str) -> Schedule:
        return ladder(data={"source": source, "vocab_size": 300})

    first = reading(f"{tmp_path}/texts")
    for same in ("linked", "./texts/", "linked/../texts"):
        assert first_difference(first, reading(f"{tmp_path}/{same}")) is None
    assert first_difference(first, reading(f"file://{tmp_path}/texts")) is None
    assert str(first_difference(first, reading(f"{tmp_path}/other"))).startswith("data.source = ")


def test_a_run_may_be_resumed_with_other_trackers(schedule: Path) -> None:
    run_here("run", schedule, "--runs-dir", schedule.parent / "runs", "trackers=[]", "--dry-run")
    first, other = (load_schedule(str(schedule), [f"trackers=[{names}]"]) for names in ("", "tensorboard,mlflow"))
    assert first_difference(first, other) is None
