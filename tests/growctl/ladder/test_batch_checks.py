"""Batch and context of each stage: what a schedule may say, and the messages for what does not fit."""

from typing import Any

import pytest

from growctl.launch.resolve import uneven_batch
from growctl.schedule.blocks import StageBatch, longest_context, stage_batch
from tests.growctl.schedules import changed, parse, paths_of

SMALL, LARGE = "stages.0", "stages.1"


def batches(**changes: Any) -> list[StageBatch]:
    schedule = parse(changed({"launch.micro_batch_size": "auto"} | changes))
    return [stage_batch(schedule, index) for index in range(2)]


def test_a_stage_has_the_batch_and_context_of_training_unless_it_says_otherwise() -> None:
    assert batches() == [StageBatch(8, 16), StageBatch(8, 16)]
    assert batches(**{f"{SMALL}.batch_size": 2}) == [StageBatch(2, 16), StageBatch(8, 16)]
    assert batches(**{f"{LARGE}.sequence_length": 32, f"{LARGE}.batch_size": 3})[1] == StageBatch(3, 32)


def test_a_stage_that_sets_only_its_context_keeps_the_tokens_of_a_step() -> None:
    assert batches(**{f"{SMALL}.sequence_length": 4})[0] == StageBatch(32, 4)
    assert batches(**{f"{LARGE}.sequence_length": 64})[1] == StageBatch(2, 64)


def test_the_longest_context_may_be_that_of_any_stage() -> None:
    assert longest_context(parse(changed({f"{SMALL}.sequence_length": 64, "launch.micro_batch_size": 1}))) == 64


@pytest.mark.parametrize(
    ("changes", "paths"),
    [
        ({f"{SMALL}.sequence_length": 6, f"{SMALL}.batch_size": 8}, "stages.0.sequence_length"),
        ({f"{SMALL}.sequence_length": 6}, "stages.0.sequence_length"),
        ({f"{LARGE}.sequence_length": 24, f"{LARGE}.batch_size": 8}, "training.sequence_length"),
        ({f"{SMALL}.sequence_length": 256}, "stages.0.sequence_length"),
        ({f"{SMALL}.sequence_length": 8, "data.packing": "best_fit"}, "data.packing"),
        ({f"{SMALL}.batch_size": 6}, "launch.micro_batch_size"),
        ({"launch.micro_batch_size": 3}, "launch.micro_batch_size"),
        ({f"{SMALL}.train_tokens": 100, f"{SMALL}.batch_size": 12}, "stages.0.train_tokens"),
    ],
)
def test_what_does_not_fit_is_one_clear_message(changes: dict[str, Any], paths: str) -> None:
    assert paths_of(parse, changed(changes)) == paths


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {f"{SMALL}.batch_size": 10},
            "stages.0.batch_size: makes 10 sequences of a step, which must be a multiple of 4, for 4 devices of stage "
            "small",
        ),
        (
            {f"{LARGE}.sequence_length": 64},
            "stages.1.sequence_length: makes 2 sequences of a step, which must be a multiple of 4, for 4 devices of "
            "stage large",
        ),
    ],
)
def test_a_batch_that_the_ranks_cannot_share_names_its_stage(changes: dict[str, Any], message: str) -> None:
    assert uneven_batch(parse(changed({"launch.micro_batch_size": "auto"} | changes)), 4) == message


def test_a_batch_of_training_that_no_stage_has_needs_no_ranks() -> None:
    own = {f"{SMALL}.batch_size": 12, f"{LARGE}.batch_size": 24, "launch.micro_batch_size": "auto"}
    assert uneven_batch(parse(changed(own)), 12) is None
