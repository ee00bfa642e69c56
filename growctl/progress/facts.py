"""The facts of a run in words: the rows below the live view's table, and the line that a log gets instead."""

from collections.abc import Iterator

from growctl.progress.ladder import Ahead, LadderProgress
from growctl.progress.stage import StageProgress
from growctl.text.formatting import duration, scientific, short_count
from stages.counted import counted

SHOWN_WAIT = 0.05
"""The share of waiting for data from which on it is shown."""


def rows(ladder: LadderProgress) -> Iterator[tuple[str, str]]:
    """The facts of a run as (label, text); of the stage that trains now, if one does."""
    if stage := ladder.active:
        yield "loss", _losses(stage) if _has_loss(stage) else _earlier_losses(ladder, stage)
        yield "speed", _speed(ladder, stage)
        if stage.ramp is not None:
            until = stage.plan.ramp_steps + 1
            yield "ramp", f"{stage.ramp:.2f}: the factor on the new tokens' keys, 1 from step {until} on"
        if stage.anneal is not None:
            yield "tau", f"{stage.anneal:.0%} of the way of tau (the factor on the scores) to sqrt(n)"
        yield (
            "time left",
            f"{_time(stage.seconds_left)} in the stage, {_time(ladder.seconds_left)} in the {ladder.kind}",
        )
    elif ladder.seconds_left:
        yield "time left", f"{_time(ladder.seconds_left)} in the {ladder.kind}"
    yield "compute", _compute(ladder)
    if stage:
        if evaluation := ladder.next_evaluation(stage):
            yield "evaluation", f"next {_ahead(evaluation)}, at step {evaluation.step}"
        if growth := _growth(ladder, stage):
            yield "growth", f"next {growth}"


def line(ladder: LadderProgress, stage: StageProgress) -> str:
    """The same facts of `stage` in one line."""
    parts = [_losses(stage), _speed(ladder, stage)]
    if stage.ramp is not None:
        parts.append(f"ramp {stage.ramp:.2f}")
    if stage.anneal is not None:
        parts.append(f"tau (the factor on the scores) {stage.anneal:.0%} of its way to sqrt(n)")
    if stage.seconds_left is not None:
        parts.append(f"{duration(stage.seconds_left)} left in the stage")
        parts.append(f"{_time(ladder.seconds_left)} in the {ladder.kind}")
    parts.append(_compute(ladder))
    if evaluation := ladder.next_evaluation(stage):
        parts.append(f"next evaluation {_ahead(evaluation)}")
    if growth := _growth(ladder, stage):
        parts.append(f"next growth {growth}")
    return f"stage {stage.plan.name} step {stage.step}/{stage.num_steps}: {', '.join(parts)}"


def _has_loss(stage: StageProgress) -> bool:
    return stage.loss is not None or stage.validation_step is not None


def _earlier_losses(ladder: LadderProgress, stage: StageProgress) -> str:
    """The losses of the last stage before `stage` that has any, for a stage that has none yet."""
    parts = list(ladder.stages.values())
    earlier = next((part for part in reversed(parts[: parts.index(stage)]) if _has_loss(part)), None)
    return f"{earlier.plan.name} ended with {_losses(earlier)}" if earlier else _losses(stage)


def _losses(stage: StageProgress) -> str:
    training = "no training loss yet" if stage.loss is None else f"training loss {stage.loss:.4f}"
    if stage.validation_step is None:
        return f"{training}, no validation loss yet"
    return f"{training}, last validation loss {validation_words(stage)} (step {stage.validation_step})"


def validation_words(stage: StageProgress) -> str:
    """The last validation loss; empty before the first evaluation."""
    if stage.validation_step is None:
        return ""
    return "not finite" if stage.validation_loss is None else f"{stage.validation_loss:.4f}"


def _speed(ladder: LadderProgress, stage: StageProgress) -> str:
    if not stage.tokens_per_second:
        return "not measured yet"
    mfu = stage.mfu(ladder.schedule.launch.hardware) if ladder.schedule else None
    share = "MFU n/a (the device's peak is unknown)" if mfu is None else f"MFU {mfu:.1%} of the devices' peak"
    waits = f", {stage.data_wait_share:.0%} of the time waits for data" if stage.data_wait_share >= SHOWN_WAIT else ""
    return f"{short_count(stage.tokens_per_second)} tokens/s, {share}{waits}"


def _compute(ladder: LadderProgress) -> str:
    done, whole = ladder.flops, ladder.all_flops
    share = f" ({done / whole:.0%})" if whole else ""
    return f"{scientific(done)} of the {ladder.kind}'s {scientific(whole)} FLOPs{share}"


def _growth(ladder: LadderProgress, stage: StageProgress) -> str | None:
    found = ladder.next_growth(stage)
    if found is None:
        return None
    plan, ahead = found
    latest = " at the latest" if ladder.may_end_early else ""
    return f"{_ahead(ahead)}{latest}, to {short_count(plan.num_parameters)} parameters"


def _ahead(ahead: Ahead) -> str:
    if not ahead.num_steps:
        return "now"
    after = "" if ahead.seconds is None else f" ({duration(ahead.seconds)})"
    return f"in {counted(ahead.num_steps, 'step')}{after}"


def _time(seconds: float | None) -> str:
    return "not known yet" if seconds is None else duration(seconds)
