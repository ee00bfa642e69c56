"""The warnings and notes of a plan, one sentence each."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from growctl.ladder.caveats import schedule_caveats
from growctl.ladder.costs import HEADROOM, PlanCosts, RunCost, StageCost, stage_memory
from growctl.ladder.datasets import dataset_warnings
from growctl.ladder.short_stages import short_stage_warnings
from growctl.ladder.stage_plans import plan_stages, total_flops
from growctl.launch.ranks import crowded_cores, uneven_batch
from growctl.schedule.batches import contexts, stage_batch
from growctl.schedule.blocks import Schedule
from growctl.text.formatting import byte_count, short_count
from model.transformer_sizes import stack_tokens
from stages.counted import plural

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


def plan_warnings(costs: PlanCosts) -> list[str]:
    """One sentence per problem that is likely to waste compute or to make the comparison unfair."""
    checks = (
        *(_text, _dataset, _growth_factors, _tokens_per_parameter, _epochs, _mixture, _ranks, _memory, _segments),
        *(_settings, _caveats, _short_stages),
    )
    failures = costs.measurements.failures if costs.measurements else ()
    return [*(warning for check in checks for warning in check(costs)), *failures]


def plan_notes(costs: PlanCosts) -> list[str]:
    """One sentence per fact needed to read the figures: about the schedule, then about the devices."""
    return [*_schedule_notes(costs), *_device_notes(costs)]


def _schedule_notes(costs: PlanCosts) -> list[str]:
    schedule, plans = costs.ladder.schedule, [cost.plan for cost in costs.ladder.stages]
    notes = []
    if schedule.growth.when == "slope" and len(plans) > 1:
        notes.append(
            "Every stage but the last may end before its budget: as soon as its loss falls by less than "
            f"{schedule.growth.slope:g} nats per FLOP. {_limits(schedule)}"
        )
    if schedule.growth.operator == "stack" and len(plans) > 1:
        tokens = stack_tokens(plans[-1].num_parameters, total_flops(plans).total)
        notes.append(
            f"G_stack's timing formula, fitted to large runs, would stack after {short_count(round(tokens))} tokens; "
            f"this schedule stacks after {short_count(plans[0].train_tokens)}."
        )
    if schedule.data.document_mask:
        notes.append(_attended(schedule))
    return notes


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


def _attended(schedule: Schedule) -> str:
    """What the FLOPs of attention within documents are computed from."""
    known, lengths = schedule.data.attended_tokens, contexts(schedule)
    if known:
        found = ", ".join(f"{known[str(length)]:,.1f} of {length:,}" for length in lengths if str(length) in known)
        return f"Attention within documents: a token attends to {found} tokens on average."
    length = lengths[-1]
    return (
        f"data.document_mask: the lengths of the documents are not known yet, so the FLOPs of attention are those of "
        f"all {length:,} tokens, an upper limit; `growctl prepare` makes the dataset that they are read from."
    )


def _device_notes(costs: PlanCosts) -> list[str]:
    notes = [costs.devices.note] if costs.devices.note else []
    host = max((cost.memory.host for cost in costs.ladder.stages if cost.memory), default=0)
    if host:
        notes.append(f"launch.offload puts up to {byte_count(host)} per device into the host's memory.")
    measured = costs.measurements
    if measured:
        notes.append(
            f"Times come from a few real steps of each size on {measured.where}; longer steps repeat the same "
            "micro-batches."
        )
        if any(cost.num_devices != measured.num_devices for run in costs.runs for cost in run.stages):
            these = plural(measured.num_devices, "this device", f"these {measured.num_devices} devices")
            notes.append(
                f"Beyond {these}, the times assume that every device is as fast; they ignore communication between "
                "the devices."
            )
    return notes


def _text(costs: PlanCosts) -> Iterator[str]:
    if costs.missing:
        end = "" if costs.missing.endswith("?") else "."
        needs = "`run` needs it here, `plan` does not."
        if costs.dataset:
            needs = "Its dataset is prepared, which is enough."
        yield f"{costs.missing}{end} {needs}"


def _dataset(costs: PlanCosts) -> Iterator[str]:
    if sizes := costs.dataset:
        yield from dataset_warnings(costs.ladder.schedule, sizes)


def _growth_factors(costs: PlanCosts) -> Iterator[str]:
    base = costs.ladder.schedule.base
    sizes = [("the start checkpoint", base.num_parameters)] if base else []
    sizes += [(cost.plan.name, cost.plan.num_parameters) for cost in costs.ladder.stages]
    for (before, size_before), (after, size) in pairwise(sizes):
        factor = size / size_before
        if factor > LARGEST_GROWTH:
            yield (
                f"Stage {after} has {factor:.1f} times the parameters of {before}: above "
                f"{LARGEST_GROWTH:g} times, little of the earlier training is kept; put a stage between them."
            )


def _tokens_per_parameter(costs: PlanCosts) -> Iterator[str]:
    stages = costs.ladder.stages
    first, last = stages[0].plan, stages[-1].plan
    start = costs.ladder.schedule.base
    start_tokens = start.tokens if start else 0
    if start_tokens is None:
        return  # how much the start checkpoint was trained is not known
    base = (start_tokens + first.train_tokens) / first.num_parameters
    if len(stages) > 1 and base > OPTIMAL_TOKENS * FAR:
        yield (
            f"The base is overtrained: stage {first.name} sees {base:,.0f} tokens per parameter, but "
            f"{OPTIMAL_TOKENS:g} are compute-optimal; a larger stage would use its FLOPs better."
        )
    end = (start_tokens + sum(cost.plan.train_tokens for cost in stages)) / last.num_parameters
    if OPTIMAL_TOKENS / FAR <= end <= OPTIMAL_TOKENS * FAR:
        return
    below = end < OPTIMAL_TOKENS
    easy = ", and beats the last size from scratch too" if below and costs.controls else ""
    yield (
        f"{costs.ladder.name} ends with {end:,.3g} tokens per parameter in stage {last.name}, far "
        f"{'below' if below else 'above'} {OPTIMAL_TOKENS:g}: a {'smaller' if below else 'larger'} last size would "
        f"reach a lower loss for the same FLOPs{easy}."
    )


def _mixture(costs: PlanCosts) -> Iterator[str]:
    """Sources of a mixture that do not last, or are read often."""
    for run in costs.runs:
        if run.used_up:
            yield f"{run.name} cannot be trained: {run.used_up}."
            return
    often = {part.source: part.epochs for part in costs.ladder.mixture if (part.epochs or 0) > MOST_EPOCHS}
    if often:
        read = ", ".join(f"{source} {epochs:.1f} times" for source, epochs in often.items())
        yield (
            f"{costs.ladder.name} reads sources more than {MOST_EPOCHS:g} times: {read}; repeated text helps less than "
            "new text. A limit is data.mixture.N.epochs_at_most."
        )


def _epochs(costs: PlanCosts) -> Iterator[str]:
    if costs.ladder.mixture:
        return

    def read(run: RunCost) -> float:
        return run.stages[-1].epochs or 0

    first = next((cost.plan.name for cost in costs.ladder.stages if (cost.epochs or 0) > MOST_EPOCHS), None)
    if first:
        yield (
            f"{costs.ladder.name} reads its {short_count(costs.training_tokens or 0)} training tokens "
            f"{read(costs.ladder):.1f} times, more than {MOST_EPOCHS:g} times from stage {first} on: repeated text "
            "helps less than new text."
        )
    many = [f"{_short(costs, run)} {read(run):.1f} times" for run in costs.controls if read(run) > MOST_EPOCHS]
    if many:
        yield f"Controls read the training tokens more than {MOST_EPOCHS:g} times: {', '.join(many)}."


def _ranks(costs: PlanCosts) -> Iterator[str]:
    per_machine = costs.devices.per_machine
    for uneven in dict.fromkeys(uneven_batch(run.schedule, per_machine) for run in costs.runs):
        if uneven:
            yield f"{uneven}. `run` does not start with it."
    if crowded := crowded_cores(costs.ladder.schedule, costs.devices):
        yield crowded


def _memory(costs: PlanCosts) -> Iterator[str]:
    capacity = costs.memory_bytes
    if capacity is None:
        return
    for run, cost in _each_once(
        costs, lambda cost: (cost.plan.model, cost.plan.batch.sequence_length, cost.num_devices)
    ):
        where = f"Stage {cost.plan.name} of {run.name}"
        largest, micro = cost.largest_micro_batch_size, cost.micro_batch_size
        device = f"a device of {byte_count(capacity)} with {HEADROOM:.0%} left free"
        memory = stage_memory(run.schedule, cost.plan, cost.num_devices, costs.devices)
        if largest == 0:
            least, remedy = byte_count(memory.of(1).total), _with_checkpointing(costs, run, cost, 1)
            yield f"{where} does not fit: one sequence at a time takes {least} of {device}.{remedy}"
        elif largest and micro and micro > largest:
            yield (
                f"{where} does not fit: micro-batches of {micro} take {byte_count(memory.of(micro).total)} of "
                f"{device}; {largest} is the largest that fits.{_with_checkpointing(costs, run, cost, micro)}"
            )


def _with_checkpointing(costs: PlanCosts, run: RunCost, cost: StageCost, micro_batch_size: int) -> str:
    """A sentence on what activation checkpointing would change; empty unless the stage then fits."""
    launch, capacity = run.schedule.launch, costs.memory_bytes
    if launch.recompute_every or capacity is None:
        return ""
    launch = launch.model_copy(update={"activation_checkpointing": "blocks"})
    schedule = run.schedule.model_copy(update={"launch": launch})
    before, after = (
        stage_memory(each, cost.plan, cost.num_devices, costs.devices).of(micro_batch_size).total
        for each in (run.schedule, schedule)
    )
    if after > (1 - HEADROOM) * capacity:
        return ""
    plan = plan_stages(schedule)[cost.plan.index]
    return (
        f" It fits with launch.activation_checkpointing = blocks: {byte_count(after)} instead of {byte_count(before)}, "
        f"{plan.recomputed_flops / plan.flops.total:.0%} more hardware FLOPs."
    )


def _segments(costs: PlanCosts) -> Iterator[str]:
    """Warns if one segment of activation checkpointing holds all layers."""
    every = costs.ladder.schedule.launch.recompute_every
    deepest = max(cost.plan.model.num_layers for cost in costs.ladder.stages)
    if every is not None and 1 < deepest <= every:
        yield (
            f"launch.activation_checkpointing.every = {every}: no stage has more than {deepest} layers, so each step "
            f"recomputes all of them at once, which saves hardly any memory; use less than {deepest}, or blocks."
        )


def _settings(costs: PlanCosts) -> Iterator[str]:
    """Warns of settings that differ between the ladder and its controls, naming the controls."""
    ladder = _effective(costs.ladder)
    differing: dict[tuple[str, Any], list[str]] = {}
    for control in costs.controls:
        for setting, value in _effective(control).items():
            if value != ladder[setting]:
                differing.setdefault((setting, value), []).append(_short(costs, control))
    for (setting, value), names in differing.items():
        yield (
            f"Compared runs differ in {setting}: {ladder[setting]} in the ladder, {value} in {', '.join(names)}; a "
            "difference in loss is then not due to growth alone."
        )


def _caveats(costs: PlanCosts) -> list[str]:
    return schedule_caveats(costs.ladder.schedule)


def _short_stages(costs: PlanCosts) -> list[str]:
    return short_stage_warnings(costs.ladder.schedule)


def _effective(run: RunCost) -> dict[str, Any]:
    """The settings of a run that affect its loss, by their names in warnings."""
    schedule = run.schedule
    rate, optimizer, last = schedule.learning_rate, schedule.optimizer, stage_batch(schedule, len(schedule.stages) - 1)
    stages, new = len(run.stages), sum(1 for cost in run.stages if cost.plan.generations)
    return {
        "how often the learning rate warms up and decays": _times(stages if rate.span == "stage" else 1),
        "how often it warms up again": _times(new if schedule.growth.rewarmup.steps else 0),
        "learning_rate.shape": rate.shape,
        "learning_rate.peak": f"{rate.peak:g}",
        "learning_rate.final": f"{rate.final:g}",
        "learning_rate.warmup_steps": rate.warmup_steps,
        "training.batch_size": last.batch_size,
        "training.sequence_length": last.sequence_length,
        "optimizer.betas": tuple(optimizer.betas),
        "optimizer.weight_decay": f"{optimizer.weight_decay:g}",
        "optimizer.gradient_clipping": f"{optimizer.gradient_clipping:g}",
    }


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _short(costs: PlanCosts, control: RunCost) -> str:
    """A control's name without the ladder's name in front."""
    return control.name.removeprefix(f"{costs.ladder.name}-control-")


def _each_once(costs: PlanCosts, key: Any) -> Iterator[tuple[RunCost, StageCost]]:
    """The stages of all runs, but only the first of those with equal `key`: they share their problems."""
    seen = []
    for run in costs.runs:
        for cost in run.stages:
            if key(cost) not in seen:
                seen.append(key(cost))
                yield run, cost
