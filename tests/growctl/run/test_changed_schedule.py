"""A run that is given another schedule refuses it."""

import re
from pathlib import Path

import pytest

from growctl.ladder.controls import plan_controls
from growctl.ladder.load import load_schedule
from growctl.run.requests import first_difference, schedule_yaml
from growctl.schedule.blocks import Schedule
from tests.growctl.ladders import ladder
from tests.growctl.runs import CONTROL, SCHEDULE, run_here, write_schedule

HUGE = "{name: huge, attention_tokens: 24, ffn_tokens: 60, train_steps: 40}"
THREE = ", ".join([*re.findall(r"- (\{name: .*\})", SCHEDULE), HUGE])


@pytest.fixture
def schedule(tmp_path: Path) -> Path:
    """The schedule of a run that has begun in `runs` beside it."""
    path = write_schedule(tmp_path, SCHEDULE + CONTROL)
    run = tmp_path / "runs/tiny"
    (run / "stages").mkdir(parents=True)
    (run / "schedule.yaml").write_text(schedule_yaml(load_schedule(str(path))))
    return path


def given(schedule: Path, *arguments: str, expect: int = 0) -> str:
    """What `growctl run` says of the run that has begun."""
    return run_here("run", schedule, "--runs-dir", schedule.parent / "runs", *arguments, "--dry-run", expect=expect)[1]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("stages.1.train_steps=90", "stages.1.train_steps = 90, but it was started with 60; choose another name with "),
        ("stages.0.release={decay: 1.0}", 'stages.0.release = {"decay": 1.0}, but it was started with null'),
        ("data.document_mask=true", "data.document_mask = true, but it was started with"),
        ("data.packing=best_fit", "data.packing = 'best_fit', but it was started with"),
        (f"stages=[{THREE}]", "it has the stages small, large, and this schedule has small, large, huge"),
    ],
)
def test_a_schedule_with_another_result_is_refused(schedule: Path, override: str, said: str) -> None:
    assert said in given(schedule, override, expect=2)


@pytest.mark.parametrize(
    "arguments",
    [("stages.1.train_steps=90", "--name", "tiny-2"), ("samples.prompts=[x]",), ("trackers=[tensorboard,mlflow]",)],
    ids=["under another name", "prompts", "trackers"],
)
def test_what_does_not_change_the_result_may_change(schedule: Path, arguments: tuple[str, ...]) -> None:
    assert "was started with" not in given(schedule, *arguments)


def test_a_control_with_another_budget_is_refused(schedule: Path) -> None:
    control = schedule.parent / "runs/tiny-control-transformer-scratch-0.5x"
    (control / "stages").mkdir(parents=True)
    *_, planned = plan_controls(load_schedule(str(schedule)))
    stages = [planned.schedule.stages[0].model_copy(update={"train_steps": 7})]
    (control / "schedule.yaml").write_text(schedule_yaml(planned.schedule.model_copy(update={"stages": stages})))
    assert f"{control} keeps its schedule: stages.0.train_steps = " in given(schedule, expect=2)


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
