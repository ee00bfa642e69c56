"""Checks the batch and the context of each stage; errors read `path = value: what is allowed`."""

from collections.abc import Iterator

from growctl.schedule.batches import batch_key, contexts, longest_context, stage_batch
from growctl.schedule.blocks import Schedule


def check_batches(schedule: Schedule) -> Iterator[str]:
    """Reports batches and contexts of stages that do not fit together, or to the rest of the schedule."""
    problems = [problem for index in range(len(schedule.stages)) for problem in _check_stage(schedule, index)]
    yield from problems or [*_check_contexts(schedule)] or _check_micro_batch(schedule)


def _check_stage(schedule: Schedule, index: int) -> Iterator[str]:
    """Reports a stage whose own keys contradict each other."""
    stage, training, here = schedule.stages[index], schedule.training, f"stages.{index}"
    length, tokens = stage.sequence_length or training.sequence_length, stage.batch_tokens
    if tokens is not None and stage.batch_size is not None:
        if stage.batch_size * length != tokens:
            yield (
                f"{here}: batch_size = {stage.batch_size} and batch_tokens = {tokens} differ (sequence_length is "
                f"{length}); drop one (as an override: ~{here}.batch_tokens)"
            )
    elif tokens is not None and tokens % length:
        near = _near(tokens, length)
        yield f"{here}.batch_tokens = {tokens}: must be a multiple of the stage's sequence_length, {length}{near}"
    elif tokens is None and stage.batch_size is None and stage.sequence_length is not None:
        usual = training.batch_size * training.sequence_length
        if usual % length and not longest_context(schedule) % length:
            yield (
                f"{here}.sequence_length = {length}: must divide the {usual} tokens of training's step, which a stage "
                f"with only this key keeps; set {here}.batch_size too"
            )


def _check_contexts(schedule: Schedule) -> Iterator[str]:
    """Reports contexts in which the data's order, which is that of windows of the longest, cannot be read."""
    longest = longest_context(schedule)
    for index, stage in enumerate(schedule.stages):
        length = stage_batch(schedule, index).sequence_length
        if longest % length:
            key = f"stages.{index}.sequence_length" if stage.sequence_length else "training.sequence_length"
            yield (
                f"{key} = {length}: must divide the longest context of the ladder, {longest}, so that no token is read "
                f"twice; use {_nearest_divisor(longest, length)}"
            )
    if schedule.data.packing == "best_fit" and len(contexts(schedule)) > 1:
        lengths = ", ".join(map(str, contexts(schedule)))
        yield (
            f"data.packing = 'best_fit': needs one context in all stages, for which documents are packed; they have "
            f"{lengths}; use concatenate, or one sequence_length"
        )


def _check_micro_batch(schedule: Schedule) -> Iterator[str]:
    micro = schedule.launch.micro_batch_size
    told = set()
    for index, stage in enumerate(schedule.stages):
        batch, key = stage_batch(schedule, index).batch_size, batch_key(schedule, index)
        if micro == "auto" or batch % micro == 0 or key in told:
            continue
        told.add(key)
        of = "" if key == "training.batch_size" else f" of stage {stage.name}"
        what = key if key.endswith("batch_size") else f"the batch{of} ({key})"
        yield f"launch.micro_batch_size = {micro}: must divide {what}, {batch}"


def _near(tokens: int, length: int) -> str:
    below = tokens - tokens % length
    return f"; use {f'{below} or ' if below else ''}{below + length}"


def _nearest_divisor(longest: int, length: int) -> int:
    """The divisor of `longest` that is nearest to `length`."""
    small = [number for number in range(1, int(longest**0.5) + 1) if longest % number == 0]
    return min({*small, *(longest // number for number in small)}, key=lambda divisor: (abs(divisor - length), divisor))
