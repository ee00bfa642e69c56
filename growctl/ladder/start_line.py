"""What a plan says of the checkpoint that its first stage starts from."""

from dataclasses import dataclass

from growctl.ladder.sizes import is_grown, stage_model
from growctl.schedule.blocks import Schedule
from growctl.text.formatting import scientific, short_count
from model.config import num_parameters


def start_line(schedule: Schedule) -> str | None:
    """The start checkpoint, what the first stage does with it, and its cost; None if the model starts new."""
    base = schedule.base
    if base is None:
        return None
    size, name = short_count(base.num_parameters), schedule.stages[0].name
    trained = f", trained in run {base.run}" if base.run else ""
    if is_grown(schedule, 0):
        after = short_count(num_parameters(stage_model(schedule, 0)))
        what = f"Stage {name} grows {base.path}{trained}, from {size} to {after} parameters"
    else:
        what = f"Stage {name} trains on {base.path}{trained} ({size} parameters)"
    if schedule.base_flops is None:
        return f"{what}. The cost of this checkpoint is not known and not counted; set start.flops to count it."
    flops = scientific(schedule.base_flops)
    return f"{what}. The budgets of controls count its {flops} FLOPs; the tables leave them out."


@dataclass(frozen=True)
class StartEntry:
    """The checkpoint that the first stage starts from, for scripts."""

    checkpoint: str
    """Its path."""

    manifest: str
    """sha256 of its manifest.json."""

    run: str | None
    """The run and the stage that trained it; null if they are not known."""

    num_parameters: int
    train_tokens: int | None
    """Data tokens that it was trained on; null if they are not known."""

    flops: float | None
    """Training FLOPs that it cost; null if they are not known."""

    grows: bool
    """Whether the first stage grows it before it trains."""


def start_entry(schedule: Schedule) -> StartEntry | None:
    """The same for scripts."""
    base = schedule.base
    if base is None:
        return None
    return StartEntry(
        checkpoint=base.path,
        manifest=base.manifest,
        run=base.run,
        num_parameters=base.num_parameters,
        train_tokens=base.tokens,
        flops=schedule.base_flops,
        grows=is_grown(schedule, 0),
    )
