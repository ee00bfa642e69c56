"""Fits a draft to the memory of its devices, and plans the schedule that it becomes."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from growctl.draft.advice import advised_draft
from growctl.draft.document import schedule_text
from growctl.draft.grow_on import GrowOn, GrowWish, grow_on
from growctl.draft.recipe import SHARDINGS, Draft, LawWish, Wish, make_draft
from growctl.ladder.conditions import comparison_conditions
from growctl.ladder.costs import Plan, total_cost
from growctl.ladder.datasets import dataset_warnings, estimated_sizes
from growctl.ladder.load import load_schedule
from growctl.ladder.plan import make_plan
from growctl.launch.devices import gpus_here
from growctl.launch.machines import LaunchError
from growctl.law.measured import shared_conditions, unlike
from growctl.schedule.blocks import Schedule
from growctl.text.formatting import short_count
from model.errors import UserError


def drafted(
    wish: Wish | LawWish | GrowWish, name: str, runs_dir: Path = Path("runs")
) -> tuple[Draft | GrowOn, str, Plan]:
    """The draft for `wish`, with the least sharding at which all its stages and controls fit, its text, and its plan as
    `name`.

    The plan warns of nothing, unless the wish asks for it. Raises UserError if the wish cannot be fulfilled.
    """
    gpus = wish.gpus or _num_gpus_here()
    draft: Draft | GrowOn
    if isinstance(wish, GrowWish):
        draft = grow_on(wish, runs_dir)
    else:
        draft = make_draft(wish, gpus) if isinstance(wish, Wish) else advised_draft(wish, runs_dir)
    sharded = (replace(draft, sharding=sharding) for sharding in SHARDINGS)
    plans = ((draft, make_plan(_loaded(_text(draft), name))) for draft in sharded)
    fitting = next((each for each in plans if _fits(each[1])), None)
    if fitting is None:
        device, params = wish.device or "GPU of this machine", short_count(draft.num_parameters)
        raise UserError(
            f"--params {params}: does not fit on {gpus} x {device}, even with ZeRO 3 and the optimizer in the host's "
            "memory; choose fewer parameters, more --gpus or larger ones"
        )
    draft, plan = fitting
    if isinstance(draft, Draft):
        trained = sum(control.total.trained_flops for control in plan.controls)
        draft = replace(draft, controls_cost=trained / total_cost(plan.trunk).flops)
    text = _text(draft)
    schedule = _loaded(text, name)
    if draft.recipe and (why := unlike(draft.recipe.conditions, shared_conditions(comparison_conditions(schedule)))):
        raise UserError(f"--law: a draft cannot be trained as the law's runs were: {why}")
    plan = make_plan(schedule)
    of_text = dataset_warnings(schedule, estimated_sizes(schedule.data))
    return draft, text, replace(plan, warnings=(*plan.warnings, *of_text))


def _text(draft: Draft | GrowOn) -> str:
    return schedule_text(draft) if isinstance(draft, Draft) else draft.text()


def _loaded(text: str, name: str) -> Schedule:
    """The schedule in `text`, loaded as `plan` and `run` load it."""
    with TemporaryDirectory() as folder:
        path = Path(folder, f"{name}.yaml")
        path.write_text(text, encoding="utf-8")
        try:
            return load_schedule(str(path))
        except UserError as error:
            raise UserError(str(error).replace(f"{path}: ", "the draft is invalid: ")) from None


def _fits(plan: Plan) -> bool:
    """Whether every stage of the ladder and its controls fits one sequence at a time; True if the memory is unknown."""
    return all(stage.largest_micro_batch_size != 0 for run in plan.runs for stage in run.trunk)


def _num_gpus_here() -> int:
    """GPUs of this machine, which `launch.devices: auto` uses; 1 without any."""
    try:
        return len(gpus_here()) or 1
    except LaunchError:
        return 1
