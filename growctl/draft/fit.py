"""Fits a draft to the memory of its devices, and plans the schedule that it becomes."""

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from growctl.draft.document import schedule_text
from growctl.draft.recipe import SHARDINGS, Draft, Sharding, make_draft
from growctl.draft.wish import Wish
from growctl.ladder.costs import Plan
from growctl.ladder.load import load_schedule
from growctl.ladder.plan import make_plan
from growctl.launch.devices import gpus_here
from growctl.launch.machines import LaunchError
from growctl.schedule.blocks import Schedule
from growctl.text.formatting import short_count
from model.errors import UserError


@dataclass(frozen=True)
class Drafted:
    """A finished draft."""

    draft: Draft
    text: str
    """The schedule's YAML."""

    plan: Plan
    """Its warnings are what `growctl plan` will warn of: nothing, unless the wish asks for it."""


def drafted(wish: Wish, name: str) -> Drafted:
    """The schedule for `wish`, called `name`, with the least sharding at which all its stages and controls fit.

    Raises UserError if the wish cannot be fulfilled.
    """
    draft = make_draft(wish, wish.gpus or _num_gpus_here())
    schedule = _loaded(schedule_text(draft), name)
    sharding = next((sharding for sharding in SHARDINGS if _fits(_plan(schedule, sharding))), None)
    if sharding is None:
        raise UserError(_too_large(draft, schedule))
    draft = replace(draft, sharding=sharding)
    text = schedule_text(draft)
    return Drafted(draft, text, make_plan(_loaded(text, name)))


def _loaded(text: str, name: str) -> Schedule:
    """The schedule in `text`, loaded as `plan` and `run` load it."""
    with TemporaryDirectory() as folder:
        path = Path(folder, f"{name}.yaml")
        path.write_text(text, encoding="utf-8")
        return load_schedule(str(path))


def _plan(schedule: Schedule, sharding: Sharding, num_devices: int | None = None) -> Plan:
    """The plan with that sharding, and with `num_devices` in place of the schedule's."""
    zero_stage, offload = sharding
    update: dict[str, Any] = {"zero_stage": zero_stage, "offload": offload}
    if num_devices:
        update["devices"] = num_devices
    return make_plan(schedule.model_copy(update={"launch": schedule.launch.model_copy(update=update)}))


def _fits(plan: Plan) -> bool:
    """Whether every stage of the ladder and its controls fits one sequence at a time; True if the memory is unknown."""
    return all(stage.largest_micro_batch_size != 0 for run in plan.runs for stage in run.trunk)


def _too_large(draft: Draft, schedule: Schedule) -> str:
    """The message for a draft that fits with no sharding, with the number of devices that would do."""
    wish = draft.wish
    gpus, device = wish.gpus or 1, wish.device or "GPU of this machine"
    said = (
        f"--params {short_count(wish.params)}: does not fit on {gpus} x {device}, even with ZeRO 3 and the optimizer "
        "in the host's memory"
    )
    while (gpus := 2 * gpus) <= draft.batch_size:
        if _fits(_plan(schedule, SHARDINGS[-1], gpus)):
            return f"{said}; --gpus {gpus} fits"
    return f"{said}; choose fewer parameters, or devices with more memory"


def _num_gpus_here() -> int:
    """GPUs of this machine, which `launch.devices: auto` uses; 1 without any."""
    try:
        return len(gpus_here()) or 1
    except LaunchError:
        return 1
