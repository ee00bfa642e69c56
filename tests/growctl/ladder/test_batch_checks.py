"""Batch and context of each stage: what a schedule may say, and the messages for what does not fit."""

from typing import Any

import pytest

from growctl.launch.resolve import uneven_batch
from growctl.schedule.batches import StageBatch, longest_context, stage_batch
from tests.growctl.schedules import changed, message_of, parse

SMALL, LARGE = "stages.0", "stages.1"


def batches(**changes: Any) -> list[StageBatch]:
    schedule = parse(changed({"launch.micro_batch_size": "auto"} | changes))
    return [stage_batch(schedule, index) for index in range(2)]


def test_a_stage_has_the_batch_and_context_of_training_unless_it_says_otherwise() -> None:
    assert batches() == [StageBatch(8, 16), StageBatch(8, 16)]
    assert batches(**{f"{SMALL}.batch_size": 2}) == [StageBatch(2, 16), StageBatch(8, 16)]
    assert batches(**{f"{SMALL}.batch_tokens": "1k", f"{SMALL}.sequence_length": 8})[0] == StageBatch(125, 8)
    assert batches(**{f"{LARGE}.sequence_length": 32, f"{LARGE}.batch_size": 3})[1] == StageBatch(3, 32)
    same = {f"{SMALL}.batch_size": 4, f"{SMALL}.batch_tokens": 64}
    assert batches(**same)[0] == StageBatch(4, 16)


def test_a_stage_that_sets_only_its_context_keeps_the_tokens_of_a_step() -> None:
    assert batches(**{f"{SMALL}.sequence_length": 4})[0] == StageBatch(32, 4)
    assert batches(**{f"{LARGE}.sequence_length": 64})[1] == StageBatch(2, 64)


def test_a_schedule_that_extends_another_counts_in_tokens_if_it_sets_the_batch_size_to_null() -> None:
    assert batches(**{"training.batch_size": None, "training.batch_tokens": 64})[0] == StageBatch(4, 16)


def test_the_longest_context_may_be_that_of_any_stage() -> None:
    assert longest_context(parse(changed({f"{SMALL}.sequence_length": 64, "launch.micro_batch_size": 1}))) == 64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {f"{SMALL}.sequence_length": 6, f"{SMALL}.batch_size": 8},
            "stages.0.sequence_length = 6: must divide the longest context of the ladder, 16, so that no token is read "
            "twice; use 4",
        ),
        (
            {f"{SMALL}.sequence_length": 6},
            "stages.0.sequence_length = 6: must divide the longest context of the ladder, 16, so that no token is read "
            "twice; use 4",
        ),
        (
            {f"{LARGE}.sequence_length": 24, f"{LARGE}.batch_size": 8},
            "training.sequence_length = 16: must divide the longest context of the ladder, 24, so that no token is "
            "read twice; use 12",
        ),
        (
            {f"{SMALL}.batch_tokens": 72},
            "stages.0.batch_tokens = 72: must be a multiple of the stage's sequence_length, 16; use 64 or 80",
        ),
        (
            {f"{SMALL}.batch_tokens": 64, f"{SMALL}.batch_size": 8},
            "stages.0: batch_size = 8 and batch_tokens = 64 differ (sequence_length is 16); drop one (as an override: "
            "~stages.0.batch_tokens)",
        ),
        (
            {f"{SMALL}.sequence_length": 256},
            "stages.0.sequence_length = 256: must divide the 128 tokens of training's step, which a stage with only "
            "this key keeps; set stages.0.batch_size too",
        ),
        (
            {f"{SMALL}.sequence_length": 8, "data.packing": "best_fit"},
            "data.packing = 'best_fit': needs one context in all stages, for which documents are packed; they have 8, "
            "16; use concatenate, or one sequence_length",
        ),
        (
            {f"{SMALL}.batch_size": 6},
            "launch.micro_batch_size = 4: must divide stages.0.batch_size, 6",
        ),
        (
            {f"{LARGE}.batch_tokens": 96},
            "launch.micro_batch_size = 4: must divide the batch of stage large (stages.1.batch_tokens), 6",
        ),
        (
            {"launch.micro_batch_size": 3},
            "launch.micro_batch_size = 3: must divide training.batch_size, 8",
        ),
        (
            {f"{SMALL}.train_tokens": 100, f"{SMALL}.batch_size": 12},
            "stages.0.train_tokens = 100: must be 192 or more, the tokens of one step",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_clear_message(changes: dict[str, Any], message: str) -> None:
    assert message_of(parse, changed(changes)) == f"s.yaml: {message}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {f"{SMALL}.batch_size": 10},
            "stages.0.batch_size = 10: must be a multiple of 4, for 4 devices of stage small; use 8 or 12",
        ),
        (
            {f"{LARGE}.batch_tokens": 96},
            "stages.1.batch_tokens = 96: must be a multiple of 64, for 4 devices of stage large; use 64 or 128",
        ),
        (
            {f"{LARGE}.sequence_length": 64},
            "stages.1.sequence_length: makes 2 sequences of a step, which must be a multiple of 4, for 4 devices of "
            "stage large; set stages.1.batch_size to 4",
        ),
    ],
)
def test_a_batch_that_the_ranks_cannot_share_names_its_stage(changes: dict[str, Any], message: str) -> None:
    assert uneven_batch(parse(changed({"launch.micro_batch_size": "auto"} | changes)), 4) == message


def test_a_batch_of_training_that_no_stage_has_needs_no_ranks() -> None:
    own = {f"{SMALL}.batch_size": 12, f"{LARGE}.batch_size": 24, "launch.micro_batch_size": "auto"}
    assert uneven_batch(parse(changed(own)), 12) is None
