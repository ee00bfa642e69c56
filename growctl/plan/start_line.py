"""What a plan says of the checkpoint that its first stage starts from."""

from typing import Any

from growctl.ladder.sizes import is_grown, stage_model
from growctl.schema.blocks import Schedule
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


def start_entry(schedule: Schedule) -> dict[str, Any] | None:
    """The same for scripts."""
    base = schedule.base
    if base is None:
        return None
    return {
        "checkpoint": base.path,
        "manifest": base.manifest,
        "run": base.run,
        "num_parameters": base.num_parameters,
        "tokens": base.tokens,
        "flops": schedule.base_flops,
        "grows": is_grown(schedule, 0),
    }
