"""The warnings and notes of a schedule, of its controls and of its plan, one sentence each."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from growctl.ladder.controls import plan_controls
from growctl.ladder.costs import HEADROOM, Plan, RunCost, StageCost, stage_memory
from growctl.ladder.datasets import DatasetSizes, dataset_warnings, epochs_after, exhausted, mixture_parts
from growctl.ladder.stage_plans import StagePlan, plan_run, plan_stages
from growctl.launch.devices import gpus_here
from growctl.launch.machines import Devices
from growctl.launch.resolve import uneven_batch
from growctl.runs_dir import CONTROL_INFIX, RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.text.formatting import byte_count, duration, scientific
from model.errors import UserError
from stages.counted import counted
from stages.engine.devices import cpu_name

OPTIMAL_TOKENS = 20.0
"""Compute-optimal training tokens per parameter (Hoffmann et al., arXiv 2203.15556)."""

FAR = 4.0
"""Factor off the optimum that deserves a warning. By that paper's loss formula (approach 3), four times fewer or more
tokens per parameter cost 16 % more FLOPs for the same loss, about as much as growing saves."""

MOST_EPOCHS = 4.0
"""Passes over the same text after which another pass is worth clearly less than new text (Muennighoff et al., arXiv
2305.16264)."""

MOST_EVALUATION = 0.25
"""FLOPs of evaluations, as a share of those of training, that deserve a warning."""

CORE_FLOPS = 1e11
"""FLOPs a second that training on a CPU core does not exceed."""

MOST_YEARS = 10.0
"""No run on CPUs that takes longer at that speed is worth starting."""

ALIKE = 4.0
"""Largest factor in parameters between a model and one whose speed tells of its own."""

MOSTLY = 0.5
"""Smallest share of the requested decay steps that counts as fitting, if the warm-up takes some of them."""


def plan_warnings(plan: Plan) -> list[str]:
    """One sentence per problem that is likely to waste compute or to make the comparison unfair."""
    uneven = dict.fromkeys(uneven_batch(run.schedule, plan.devices.per_machine) for run in plan.runs)
    return [
        *([f"{plan.missing}. `run` needs it here, `plan` does not."] if plan.missing else ()),
        *([f"{plan.sizes.problem}. `run` does not start with it."] if plan.sizes.problem else ()),
        *_tokens_per_parameter(plan),
        *(f"{batch}. `run` does not start with it." for batch in uneven if batch),
        *_memory(plan),
        *epoch_warnings(plan.schedule, plan.sizes),
        *(sentence for is_large, sentence in _evaluations(plan) if is_large),
        *dataset_warnings(plan.schedule, plan.sizes),
        *schedule_warnings(plan.schedule),
        *(plan.measurements.failures if plan.measurements else ()),
    ]


def too_slow(name: str, flops: float, schedule: Schedule, devices: Devices) -> str | None:
    """Why nobody lives to see the end of that many training FLOPs on CPUs; None if somebody may."""
    cores = len(os.sched_getaffinity(0)) * max(map(schedule.launch.nodes_of, range(len(schedule.stages))))
    years = flops / (cores * CORE_FLOPS) / (365 * 86400)
    if devices.type != "cpu" or years < MOST_YEARS:
        return None
    return (
        f"{name} trains {scientific(flops)} FLOPs: {years:,.0f} years on {counted(cores, 'CPU core')}, even at "
        f"{scientific(CORE_FLOPS)} FLOPs a second each; train it on GPUs, or plan a smaller ladder (growctl init)"
    )


def _evaluations(plan: Plan) -> Iterator[tuple[bool, str]]:
    """(whether it deserves a warning, a sentence) on the share of evaluations; nothing if it is not known."""
    total = plan.total_with_controls
    if total.evaluation_flops and total.trained_flops:
        share = total.evaluation_flops / total.trained_flops
        fewer = "; a larger evaluation.every or a smaller evaluation.max_sequences makes it less"
        is_large = share > MOST_EVALUATION
        shown = f"{share:.0%}" if share >= 0.01 else "less than 1%"
        yield is_large, f"Evaluations add {shown} to the FLOPs of training{fewer if is_large else ''}."


def _earlier_times(plan: Plan, runs_dir: Path) -> Iterator[str]:
    """What earlier runs on this machine's devices say of the time of the plan, if they trained models of its sizes."""
    speeds = list(_speeds(plan, runs_dir))

    def seconds(slowest: bool, *runs: RunCost) -> float:
        """NaN if nothing is known of a stage."""
        total = 0.0
        for stage in (stage for run in runs for stage in run.stages):
            alike = (speed for _, size, speed in speeds if 1 / ALIKE <= size / stage.num_parameters <= ALIKE)
            total += stage.trained_flops / (min if slowest else max)(alike, default=math.nan)
        return total

    def span(*runs: RunCost) -> str:
        fast, slow = (duration(seconds(slowest, *runs)) for slowest in (False, True))
        return f"about {fast}" if fast == slow else f"{fast} to {slow}"

    if not math.isnan(seconds(True, *plan.runs)):
        alone = f", the ladder alone {span(plan)}" if plan.controls else ""
        first, *others = dict.fromkeys(name for name, *_ in speeds)
        names = f"{first} and {len(others)} more" if others else first
        yield f"At the speed of earlier runs on this machine ({names}), all of it takes {span(*plan.runs)}{alone}."


def _speeds(plan: Plan, runs_dir: Path) -> Iterator[tuple[str, int, float]]:
    """(run, parameters, training FLOPs per second) of every stage that was trained on the devices of the plan.

    The seconds are those of the whole run, with evaluations and checkpoints.
    """
    from growctl.ledger.entries import Cost
    from growctl.ledger.ledger import Ledger

    gpus = gpus_here(plan.schedule.launch.environment) if plan.devices.type == "cuda" else ()
    names = {cpu_name()} if plan.devices.type == "cpu" else {gpu.name for gpu in gpus}
    numbers = {stage.num_devices for stage in plan.stages}
    here = (run for run in RunsPaths(runs_dir).runs_with_ledgers() if not run.imported.exists())
    for run in here:
        with suppress(UserError, OSError), Ledger(run.ledger, read_only=True) as ledger:
            for stage in ledger.stages():
                rows = [row for row in ledger.work(stage.name) if row.paid_by is None and row.device in names]
                cost = Cost.total([row for row in rows if row.num_devices in numbers])
                if cost.flops.total:
                    yield run.directory.name, stage.num_parameters, cost.flops.total / cost.wall_seconds


def plan_notes(plan: Plan, runs_dir: Path | None = None) -> Iterator[str]:
    """One sentence per fact needed to read the figures."""
    if slow := too_slow(plan.name, plan.total_with_controls.trained_flops, plan.schedule, plan.devices):
        yield f"{slow}."
    yield from (sentence for is_large, sentence in _evaluations(plan) if not is_large)
    if runs_dir and plan.total.wall_seconds is None and not plan.measurements:
        yield from _earlier_times(plan, runs_dir)
    schedule, measured = plan.schedule, plan.measurements
    if schedule.data.document_mask and not schedule.data.attended_tokens:
        yield (
            "data.document_mask: the lengths of the documents are not known yet, so the FLOPs of attention are an "
            "upper limit; `growctl prepare` makes the dataset that they are read from."
        )
    if tuned := [block.kind for block in schedule.controls if len(block.peaks) > 1 and len(block.budgets) > 1]:
        yield (
            f"The peak of {' and '.join(tuned)} is tuned at the budget nearest to 1. Other budgets, planned here at "
            "the ladder's own, then train at the best peak. That changes which steps they can reuse, not their FLOPs."
        )
    if plan.devices.note:
        yield plan.devices.note
    if measured and any(stage.num_devices != measured.num_devices for run in plan.runs for stage in run.trunk):
        yield (
            f"Times are those of {counted(measured.num_devices, 'device')}: they assume that every further device is "
            "as fast, and ignore communication between them."
        )


def _tokens_per_parameter(plan: Plan) -> Iterator[str]:
    if plan.schedule.data.images or (plan.schedule.base and plan.schedule.base.tokens is None):
        return  # the optimum is one of text, or how much the start checkpoint was trained is not known
    last, below = plan.trunk[-1], plan.trunk[-1].tokens_per_parameter < OPTIMAL_TOKENS
    easy = ", and beats the last size from scratch too" if below and plan.controls else ""
    if not OPTIMAL_TOKENS / FAR <= last.tokens_per_parameter <= OPTIMAL_TOKENS * FAR:
        yield (
            f"{plan.name} ends with {last.tokens_per_parameter:,.3g} tokens per parameter in stage {last.name}, far "
            f"{'below' if below else 'above'} {OPTIMAL_TOKENS:g}: a {'smaller' if below else 'larger'} last size would "
            f"reach a lower loss for the same FLOPs{easy}."
        )


def epoch_warnings(schedule: Schedule, sizes: DatasetSizes) -> Iterator[str]:
    """Warns of text that is read often, and of sources of a mixture that do not last."""
    if used_up := exhausted(schedule, sizes.sources, with_controls=True):
        yield f"{schedule.name} cannot be trained: {used_up}."
        return
    if schedule.data.images:
        return  # usually read for hundreds of epochs
    often = {}
    for name, run in [(schedule.name, schedule), *((each.name, each.schedule) for each in plan_controls(schedule))]:
        last = plan_run(run)[-1]
        parts = [part for part in mixture_parts(run, sizes.sources) if part.stage == last.name]
        often[str(name).removeprefix(f"{schedule.name}{CONTROL_INFIX}")] = epochs_after(last, parts, sizes) or 0
    if most := [f"{name} {epochs:.1f} times" for name, epochs in often.items() if epochs > MOST_EPOCHS]:
        yield (
            f"Training text is read more than {MOST_EPOCHS:g} times: {', '.join(most)}; repeated text helps less than "
            "new text."
        )


def _memory(plan: Plan) -> Iterator[str]:
    capacity = plan.device_memory_bytes or 0
    sizes: dict[tuple[object, ...], tuple[RunCost, StageCost]] = {}
    for run in plan.runs:
        for stage in run.trunk:
            sizes.setdefault((stage.plan.model, stage.num_devices, stage.sequence_length), (run, stage))
    for run, stage in sizes.values():  # those of one size have the same problem
        largest, micro = stage.largest_micro_batch_size, stage.micro_batch_size or 1
        if largest is not None and micro > largest:
            memory = stage_memory(run.schedule, stage.plan, stage.num_devices, plan.devices)
            yield (
                f"Stage {stage.name} of {run.name} does not fit: micro-batches of {micro} take "
                f"{byte_count(memory.of(micro).total)} of a device of {byte_count(capacity)} with {HEADROOM:.0%} left "
                f"free; {largest or 'none'} is the largest that fits. A higher launch.zero_stage, launch.offload and "
                "launch.activation_checkpointing take less."
            )


def misfits(schedule: Schedule) -> list[str]:
    """Why warm-up and decay of the learning rate do not fit into the steps: a sentence for each such span.

    The sentences lack their subject, the name of what trains, and the full stop.
    """
    sentences = []
    for plan in _ends_of_spans(schedule):
        rate = plan.learning_rate
        asked = round(schedule.learning_rate.decay * rate.total_steps) if rate.shape == "wsd" else 0
        left = max(0, rate.total_steps - rate.warmup_steps)
        if left == 0 or left < MOSTLY * asked:
            warmup = f"of which {rate.warmup_steps:,} are warm-up: {left:,} are left for its decay"
            where = f" (stage {plan.name})" if schedule.learning_rate.span == "stage" else ""
            sentences.append(f"trains {counted(rate.total_steps, 'step')}, {warmup}{where}")
    return sentences


def decays(schedule: Schedule) -> bool:
    """Whether the learning rate has steps to decay in, at the end of the run or (`span: stage`) of every stage."""
    rates = [plan.learning_rate for plan in _ends_of_spans(schedule)]
    return all(rate.total_steps > rate.warmup_steps for rate in rates)


def _ends_of_spans(schedule: Schedule) -> list[StagePlan]:
    plans = plan_stages(schedule)
    return plans if schedule.learning_rate.span == "stage" else plans[-1:]


def schedule_warnings(schedule: Schedule) -> list[str]:
    """The warnings that need no plan: of learning rates that do not fit, and then of each control.

    They say nothing of the controls if the ladder's own learning rate does not fit.
    """
    if own := misfits(schedule):
        return [f"The ladder {own[0]}; lower learning_rate.warmup_steps or learning_rate.decay, or train longer."]
    return [f"{control.name} {caveat}." for control in plan_controls(schedule) for caveat in misfits(control.schedule)]
