"""The warnings and notes of a schedule, of its controls and of its plan, one sentence each."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from growctl.ladder.controls import plan_controls
from growctl.ladder.costs import HEADROOM, Plan, RunCost, StageCost, stage_memory
from growctl.ladder.datasets import dataset_warnings
from growctl.ladder.sizes import stage_model
from growctl.ladder.stage_plans import plan_stages
from growctl.launch.resolve import crowded_cores, uneven_batch
from growctl.schedule.blocks import Schedule, contexts
from growctl.text.formatting import byte_count, short_count
from model.config import num_parameters
from model.transformer_sizes import stack_tokens
from stages.counted import counted, plural

LARGEST_GROWTH = 4.0
"""Factor in parameters above which a growth keeps little of the earlier stages' work: more than three quarters of the
model are then new."""

OPTIMAL_TOKENS = 20.0
"""Compute-optimal training tokens per parameter (Hoffmann et al., arXiv 2203.15556)."""

FAR = 4.0
"""Factor off the optimum that deserves a warning. By that paper's loss formula (approach 3), four times fewer or more
tokens per parameter cost 16 % more FLOPs for the same loss, about as much as growing saves."""

MOST_EPOCHS = 4.0
"""Passes over the same text after which another pass is worth clearly less than new text (Muennighoff et al., arXiv
2305.16264)."""


def plan_warnings(plan: Plan) -> list[str]:
    """One sentence per problem that is likely to waste compute or to make the comparison unfair."""
    checks = (_text, _growth_factors, _tokens_per_parameter, _epochs, _ranks, _memory, _segments, _learning_rates)
    return [
        *(warning for check in checks for warning in check(plan)),
        *dataset_warnings(plan.schedule, plan.dataset),
        *schedule_caveats(plan.schedule),
        *(plan.measurements.failures if plan.measurements else ()),
    ]


def plan_notes(plan: Plan) -> list[str]:
    """One sentence per fact needed to read the figures: about the schedule, then about the devices."""
    return [*_schedule_notes(plan), *_device_notes(plan)]


def _schedule_notes(plan: Plan) -> Iterator[str]:
    schedule, stages = plan.schedule, plan.trunk
    if schedule.growth.when == "slope" and len(stages) > 1:
        yield (
            "Every stage but the last may end before its budget: as soon as its loss falls by less than "
            f"{schedule.growth.slope:g} nats per FLOP. {_limits(schedule)}"
        )
    if schedule.growth.operator == "stack" and len(stages) > 1:
        tokens = stack_tokens(stages[-1].num_parameters, sum(stage.flops for stage in stages))
        yield (
            f"G_stack's timing formula, fitted to large runs, would stack after {short_count(round(tokens))} tokens; "
            f"this schedule stacks after {short_count(stages[0].budget_tokens)}."
        )
    if schedule.data.document_mask:
        means, lengths = schedule.data.attended_tokens or {}, contexts(schedule)
        attended = [f"{means[str(length)]:,.1f} of {length:,}" for length in lengths if str(length) in means]
        if attended:
            yield f"Attention within documents: a token attends to {', '.join(attended)} tokens on average."
        else:
            yield (
                "data.document_mask: the lengths of the documents are not known yet, so the FLOPs of attention are "
                f"those of all {lengths[-1]:,} tokens, an upper limit; `growctl prepare` makes the dataset that they "
                "are read from."
            )


def _limits(schedule: Schedule) -> str:
    """What the figures are if a slope ends a stage early."""
    if schedule.training.ladder_tokens is not None:
        return (
            "The next stage then trains until its own share of training.ladder_tokens, so FLOPs, also of the controls, "
            "are lower limits."
        )
    if schedule.training.ladder_flops is not None:
        return "The next stage then trains until its own share of training.ladder_flops, so tokens are upper limits."
    return "Tokens and FLOPs, also of the controls, are upper limits."


def _device_notes(plan: Plan) -> Iterator[str]:
    if plan.devices.note:
        yield plan.devices.note
    if host := max((stage.memory_bytes.host for stage in plan.trunk if stage.memory_bytes), default=0):
        yield f"launch.offload puts up to {byte_count(host)} per device into the host's memory."
    if measured := plan.measurements:
        yield (
            f"Times come from a few real steps of each size on {measured.where}; longer steps repeat the same "
            "micro-batches."
        )
        if any(stage.num_devices != measured.num_devices for run in plan.runs for stage in run.trunk):
            these = plural(measured.num_devices, "this device", f"these {measured.num_devices} devices")
            yield (
                f"Beyond {these}, the times assume that every device is as fast; they ignore communication between "
                "the devices."
            )


def _text(plan: Plan) -> Iterator[str]:
    if plan.missing:
        end = "" if plan.missing.endswith("?") else "."
        needs = "Its dataset is prepared, which is enough." if plan.dataset else "`run` needs it here, `plan` does not."
        yield f"{plan.missing}{end} {needs}"


def _growth_factors(plan: Plan) -> Iterator[str]:
    base = plan.schedule.base
    sizes = [("the start checkpoint", base.num_parameters)] if base else []
    sizes += [(stage.name, stage.num_parameters) for stage in plan.trunk]
    for (before, size_before), (after, size) in pairwise(sizes):
        factor = size / size_before
        if factor > LARGEST_GROWTH:
            yield (
                f"Stage {after} has {factor:.1f} times the parameters of {before}: above "
                f"{LARGEST_GROWTH:g} times, little of the earlier training is kept; put a stage between them."
            )


def _tokens_per_parameter(plan: Plan) -> Iterator[str]:
    first, last, base = plan.trunk[0], plan.trunk[-1], plan.schedule.base
    if base and base.tokens is None:
        return  # how much the start checkpoint was trained is not known
    if len(plan.trunk) > 1 and first.tokens_per_parameter > OPTIMAL_TOKENS * FAR:
        yield (
            f"The base is overtrained: stage {first.name} sees {first.tokens_per_parameter:,.0f} tokens per parameter, "
            f"but {OPTIMAL_TOKENS:g} are compute-optimal; a larger stage would use its FLOPs better."
        )
    end = last.tokens_per_parameter
    if OPTIMAL_TOKENS / FAR <= end <= OPTIMAL_TOKENS * FAR:
        return
    below = end < OPTIMAL_TOKENS
    easy = ", and beats the last size from scratch too" if below and plan.controls else ""
    yield (
        f"{plan.name} ends with {end:,.3g} tokens per parameter in stage {last.name}, far "
        f"{'below' if below else 'above'} {OPTIMAL_TOKENS:g}: a {'smaller' if below else 'larger'} last size would "
        f"reach a lower loss for the same FLOPs{easy}."
    )


def _epochs(plan: Plan) -> Iterator[str]:
    """Warns of text that is read often, and of sources of a mixture that do not last."""
    if used_up := next((run for run in plan.runs if run.used_up), None):
        yield f"{used_up.name} cannot be trained: {used_up.used_up}."
    elif plan.schedule.data.mixture:
        parts = [part for stage in plan.stages for part in stage.mixture]
        often = {part.source: part.epochs for part in parts if (part.epochs or 0) > MOST_EPOCHS}
        if often:
            sources = ", ".join(f"{source} {epochs:.1f} times" for source, epochs in often.items())
            yield (
                f"{plan.name} reads sources more than {MOST_EPOCHS:g} times: {sources}; repeated text helps less than "
                "new text. A limit is data.mixture.N.epochs_at_most."
            )
    else:
        if first := next((stage.name for stage in plan.trunk if (stage.epochs or 0) > MOST_EPOCHS), None):
            yield (
                f"{plan.name} reads its {short_count(plan.training_tokens or 0)} training tokens "
                f"{plan.trunk[-1].epochs:.1f} times, more than {MOST_EPOCHS:g} times from stage {first} on: repeated "
                "text helps less than new text."
            )
        last = {plan.short_name(control): control.stages[-1].epochs or 0 for control in plan.controls}
        if many := [f"{name} {epochs:.1f} times" for name, epochs in last.items() if epochs > MOST_EPOCHS]:
            yield f"Controls read the training tokens more than {MOST_EPOCHS:g} times: {', '.join(many)}."


def _ranks(plan: Plan) -> Iterator[str]:
    for uneven in dict.fromkeys(uneven_batch(run.schedule, plan.devices.per_machine) for run in plan.runs):
        if uneven:
            yield f"{uneven}. `run` does not start with it."
    if crowded := crowded_cores(plan.schedule, plan.devices):
        yield crowded


def _memory(plan: Plan) -> Iterator[str]:
    capacity = plan.device_memory_bytes
    if capacity is None:
        return
    device = f"a device of {byte_count(capacity)} with {HEADROOM:.0%} left free"
    sizes: dict[tuple[Any, ...], tuple[RunCost, StageCost]] = {}  # those of one size have the same problem
    for each in plan.runs:
        for stage in each.trunk:
            sizes.setdefault((stage.plan.model, stage.sequence_length, stage.num_devices), (each, stage))
    for run, stage in sizes.values():
        largest, micro = stage.largest_micro_batch_size, stage.micro_batch_size
        memory = stage_memory(run.schedule, stage.plan, stage.num_devices, plan.devices)
        where = f"Stage {stage.name} of {run.name} does not fit"
        if largest == 0:
            yield (
                f"{where}: one sequence at a time takes {byte_count(memory.of(1).total)} of {device}."
                f"{_with_checkpointing(plan, run, stage, 1)}"
            )
        elif largest and micro and micro > largest:
            yield (
                f"{where}: micro-batches of {micro} take {byte_count(memory.of(micro).total)} of {device}; {largest} "
                f"is the largest that fits.{_with_checkpointing(plan, run, stage, micro)}"
            )


def _with_checkpointing(plan: Plan, run: RunCost, stage: StageCost, micro_batch_size: int) -> str:
    """A sentence on what activation checkpointing would change; empty unless the stage then fits."""
    launch = run.schedule.launch
    if launch.recompute_every or plan.device_memory_bytes is None:
        return ""
    launch = launch.model_copy(update={"activation_checkpointing": "blocks"})
    schedule = run.schedule.model_copy(update={"launch": launch})
    before, after = (
        stage_memory(each, stage.plan, stage.num_devices, plan.devices).of(micro_batch_size).total
        for each in (run.schedule, schedule)
    )
    if after > (1 - HEADROOM) * plan.device_memory_bytes:
        return ""
    recomputing = plan_stages(schedule)[stage.plan.index]
    return (
        f" It fits with launch.activation_checkpointing = blocks: {byte_count(after)} instead of {byte_count(before)}, "
        f"{recomputing.recomputed_flops / recomputing.flops.total:.0%} more hardware FLOPs."
    )


def _segments(plan: Plan) -> Iterator[str]:
    """Warns if one segment of activation checkpointing holds all layers."""
    every, deepest = plan.schedule.launch.recompute_every, max(stage.num_layers for stage in plan.trunk)
    if every is not None and 1 < deepest <= every:
        yield (
            f"launch.activation_checkpointing.every = {every}: no stage has more than {deepest} layers, so each step "
            f"recomputes all of them at once, which saves hardly any memory; use less than {deepest}, or blocks."
        )


def _learning_rates(plan: Plan) -> Iterator[str]:
    """Warns if the learning rate of controls warms up or decays at other times than the ladder's."""
    for setting in ("how often the learning rate warms up and decays", "how often it warms up again"):
        counts = {run.name: _warm_ups(run, again="again" in setting) for run in plan.runs}
        differing: dict[str, list[str]] = {}
        for control in plan.controls:
            if counts[control.name] != counts[plan.name]:
                differing.setdefault(_times(counts[control.name]), []).append(plan.short_name(control))
        if differing:
            controls = ", ".join(f"{times} in {', '.join(names)}" for times, names in differing.items())
            yield (
                f"Compared runs differ in {setting}: {_times(counts[plan.name])} in the ladder, {controls}; a "
                "difference in loss is then not due to growth alone."
            )


def _warm_ups(run: RunCost, again: bool) -> int:
    """How often the learning rate of a run warms up: by its schedule, or after growths (`growth.rewarmup`)."""
    if again:
        return sum(1 for stage in run.trunk if stage.plan.generations) if run.schedule.growth.rewarmup.steps else 0
    return len(run.trunk) if run.schedule.learning_rate.span == "stage" else 1


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


MOSTLY = 0.5
"""Smallest share of the requested decay steps that counts as fitting, if the warm-up takes some of them."""

EQUAL_SIZE = 0.05
"""Largest relative difference in parameters at which a Transformer counts as the ladder's size."""


def misfits(schedule: Schedule) -> list[str]:
    """Why warm-up and decay of the learning rate do not fit into the steps: a sentence for each such span.

    The sentences lack their subject, the name of what trains, and the full stop.
    """
    has_own_spans = schedule.learning_rate.span == "stage"
    plans = plan_stages(schedule)
    sentences = []
    for plan in plans if has_own_spans else plans[-1:]:
        rate = plan.learning_rate
        asked = round(schedule.learning_rate.decay * rate.total_steps)
        left = max(0, rate.total_steps - rate.warmup_steps)
        trains = f"trains {counted(rate.total_steps, 'step')}"
        where = f" (stage {plan.name})" if has_own_spans and len(plans) > 1 else ""
        if left == 0:
            never = "decays" if rate.warmup_steps == rate.total_steps else "reaches its peak"
            warmup = f"no more than the {rate.warmup_steps:,} of the warm-up"
            sentences.append(f"{trains}, {warmup}: its learning rate never {never}{where}")
        elif rate.shape == "wsd" and left < MOSTLY * asked:
            decay = f"its decay takes {counted(left, 'step')} instead of {asked:,}"
            sentences.append(f"{trains}, {rate.warmup_steps:,} of them warm-up: {decay}{where}")
    return sentences


def decays(schedule: Schedule) -> bool:
    """Whether the learning rate has steps to decay in, at the end of the run or (`span: stage`) of every stage."""
    plans = plan_stages(schedule)
    ends = plans if schedule.learning_rate.span == "stage" else plans[-1:]
    return all(plan.learning_rate.total_steps > plan.learning_rate.warmup_steps for plan in ends)


def schedule_caveats(schedule: Schedule) -> list[str]:
    """One sentence for each caveat of `schedule` and of its controls, and for each setting that needs more steps.

    Says nothing of a control's learning rate if the ladder's own does not fit either.
    """
    rate, own = schedule.learning_rate, misfits(schedule)
    advice = f"learning_rate.warmup_steps (now {rate.warmup_steps}) or learning_rate.decay (now {rate.decay:g})"
    caveats = [f"The ladder {misfit}; lower {advice}, or train longer." for misfit in own[:1]]
    caveats += _intervals(schedule)
    last_size = num_parameters(stage_model(schedule, len(schedule.stages) - 1))
    for control in plan_controls(schedule):
        reasons = [] if own else misfits(control.schedule)
        reasons += _comparison_caveats(control.kind, control.schedule, last_size, schedule.base_flops)
        caveats += [f"{control.name} {reason}." for reason in reasons]
    return caveats


def control_caveats(kind: str, control: Schedule, last_size: int, base_flops: float | None = 0.0) -> list[str]:
    """The caveats of one control: sentences without their subject, the control's name.

    `control` is the schedule of the control, `last_size` the number of parameters of its ladder's last stage,
    `base_flops` the cost of the ladder's start checkpoint (0 without one, None if it is not known).
    """
    return [*misfits(control), *_comparison_caveats(kind, control, last_size, base_flops)]


def _intervals(schedule: Schedule) -> Iterator[str]:
    """Reports stages that end before their first evaluation or checkpoint."""
    plans = plan_stages(schedule)
    for key, every, then in (
        ("evaluation.every", schedule.evaluation.every, "the loss is only measured at the end"),
        ("checkpoint.every", schedule.checkpoint.every, "a stop loses the whole stage"),
    ):
        short = [plan for plan in plans if every >= plan.num_steps > 1]
        if short:
            names = ", ".join(f"{plan.name} ({plan.num_steps:,} steps)" for plan in short)
            fewest = min(plan.num_steps for plan in short)
            yield f"{key} = {every}: is beyond the end of {names}, so {then}; set it to {max(1, fewest // 4)}."


def _comparison_caveats(kind: str, control: Schedule, last_size: int, base_flops: float | None) -> Iterator[str]:
    """Reports a Transformer whose size is too far from the ladder's, and a start checkpoint of unknown cost."""
    if kind == "transformer-scratch":
        size = num_parameters(stage_model(control, len(control.stages) - 1))
        if abs(size / last_size - 1) > EQUAL_SIZE:
            yield (
                f"has {size / last_size:.3g} times the parameters of the ladder's last stage: no Transformer with "
                "this vocabulary comes closer"
            )
    if base_flops is None and control.start is None:
        yield (
            "trains from scratch with the FLOPs of the ladder without its start checkpoint, whose cost is not known "
            "(start.flops): the comparison favours growing"
        )
