"""Checks combinations of a schedule's fields; errors read `path = value: what is allowed`."""

import math
import re
from collections.abc import Iterator
from typing import Any, get_args

from growctl.ladder.batch_checks import check_batches
from growctl.ladder.budget_checks import check_budgets, check_ladder_budget, check_trigger
from growctl.ladder.budgets import stage_steps
from growctl.ladder.controls import plan_controls
from growctl.ladder.mixture_checks import check_text_block
from growctl.ladder.optimizer_checks import check_optimizer
from growctl.ladder.releases import finished_models, has_decayed, reason_not_to_release
from growctl.ladder.size_checks import check_sizes
from growctl.ladder.sizes import StageModels, growth_before, is_grown, layer_tokens, num_layers, stage_models
from growctl.ladder.stage_plans import plan_stages, total_flops
from growctl.ladder.start import check_start
from growctl.schedule.blocks import Schedule
from growctl.schedule.errors import NAME_ALLOWED, shown
from growctl.schedule.growth_block import GrowthBlock
from model.errors import UserError
from model.policy import invalid_combination, rejection_reason
from model.transformer_sizes import PRESERVING, WIDENING, Operator
from stages.counted import counted

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
OPERATORS = get_args(Operator)


_FOREIGN = {
    "tokenformer": (
        ("hidden_size", "ffn_size"),
        "a tokenformer grows by tokens and layers only; set it for all stages under model",
    ),
    "transformer": (
        ("attention_tokens", "ffn_tokens", "layers"),
        "a transformer has no parameter tokens; leave it out",
    ),
}
"""By family: the stage keys of the other family, and the message for them."""


def check_combinations(schedule: Schedule) -> list[str]:
    """One line per combination of values that does not fit together; empty if the schedule is valid."""
    checks = (
        check_text_block,
        _check_model,
        _check_stages,
        check_budgets,
        check_sizes,
        check_batches,
        _check_training,
        check_optimizer,
        _check_growth,
        _check_control_blocks,
    )
    if misfits := list(check_start(schedule)):
        return misfits
    return (
        [problem for check in checks for problem in check(schedule)]
        or list(_check_steps(schedule))
        or list(check_ladder_budget(schedule))
        or [problem for check in (_check_ramps, _check_slope, _check_jump) for problem in check(schedule)]
        or [problem for check in (check_trigger, _check_releases) for problem in check(schedule)]
    )


def check_controls(schedule: Schedule) -> list[str]:
    """One line per control whose generated schedule is invalid. `schedule` itself must be valid.

    Kept apart from `check_combinations`, so that the schedule of a run stays readable if a control cannot run.
    """
    problems = []
    for index, block in enumerate(schedule.controls):
        extremes = sorted({min(block.budgets), max(block.budgets)})
        alone = schedule.model_copy(update={"controls": [block.model_copy(update={"budgets": extremes})]})
        try:
            reasons = [reason for control in plan_controls(alone) for reason in check_combinations(control.schedule)]
        except UserError as error:
            reasons = [str(error)]
        if reasons:
            reason = reasons[0].removesuffix("; leave it out")  # advice on the control's schedule, not the user's
            problems.append(
                f"controls.{index}.kind = {block.kind!r}: cannot be run for this ladder: {reason}; leave it out"
            )
    return problems


def _check_model(schedule: Schedule) -> Iterator[str]:
    model, num_tokens = schedule.model, schedule.data.num_tokens
    if model.vocab_size is None and num_tokens is None:
        yield "model.vocab_size: is missing; with data.tokenizer, set it to the number of tokens of that tokenizer"
    if model.vocab_size and num_tokens and model.vocab_size < num_tokens:
        advice = "; if a text is a prepared dataset at a URL, open it first: `growctl data show URL`"
        unknown = not (schedule.data.vocab_size or schedule.data.tokenizer_vocab_size)
        at_url = unknown and any("://" in (spec.source or "") for spec in schedule.data.specs)
        yield (
            f"model.vocab_size = {model.vocab_size}: must be at least the tokenizer's {num_tokens}"
            f"{advice if at_url else ''}"
        )
    if model.family == "tokenformer" and model.ffn_size is not None:
        yield f"model.ffn_size = {model.ffn_size}: is for a transformer; a tokenformer's stages have ffn_tokens"
    if model.hidden_size % model.num_heads:
        yield f"model.num_heads = {model.num_heads}: must divide model.hidden_size, {model.hidden_size}"
        return
    head_width = model.hidden_size // model.num_heads
    turned = int(head_width * model.rotary_fraction)
    if model.rotary_fraction and (turned < 2 or turned % 2):
        yield (
            f"model.rotary_fraction = {model.rotary_fraction}: rotates {turned} of the {head_width} dimensions of a "
            "head; that number must be even and 2 or more, or the fraction 0"
        )


def _check_stages(schedule: Schedule) -> Iterator[str]:
    stages = schedule.stages
    for index, stage in enumerate(stages):
        here = f"stages.{index}"
        if stage.name in [other.name for other in stages[:index]]:
            yield f"{here}.name = {stage.name!r}: another stage has that name; each needs its own"
        foreign, why = _FOREIGN[schedule.model.family]
        for field in foreign:
            if (value := getattr(stage, field)) is not None:
                yield f"{here}.{field} = {shown(value)}: {why}"


def _check_growth(schedule: Schedule) -> Iterator[str]:
    growth, model, grows = schedule.growth, schedule.model, _grows(schedule)
    if growth.preset != "custom" and (wanted := growth.departures(growth.preset)):
        yield _contradicted_preset(growth, wanted)
        return
    if growth.when == "slope" and growth.slope is None:
        yield "growth.slope: is missing; growth.when = 'slope' needs the nats per FLOP below which a stage ends"
    if growth.when != "slope" and growth.slope is not None:
        yield f"growth.slope = {growth.slope}: goes with growth.when = 'slope', not {growth.when!r}"
    if growth.when == "slope" and (schedule.learning_rate.shape, schedule.learning_rate.span) != ("wsd", "ladder"):
        yield (
            "growth.when = 'slope': needs learning_rate.shape wsd and learning_rate.span ladder, so that no decay is "
            "cut short"
        )
    if model.family == "transformer":
        if grows and growth.operator is None:
            yield f"growth.operator: is missing; a transformer that grows needs one of {', '.join(OPERATORS)}"
        if grows and growth.operator not in (None, *PRESERVING) and not growth.allow_jump:
            yield f"growth.operator = {growth.operator!r}: changes the function; that needs growth.allow_jump = true"
        if grows and growth.depth != "append":
            yield f"growth.depth = {growth.depth!r}: is for a tokenformer; a transformer grows by growth.operator"
        yield from _check_tokenformer_keys(schedule) if grows else ()
        return
    if growth.operator is not None:
        yield f"growth.operator = {growth.operator!r}: is for a transformer; a tokenformer grows by growth.init"
    reason = invalid_combination(growth.init, growth.tau, growth.copy_noise)
    added = [growth_before(schedule, index) for index in range(len(schedule.stages))]
    if not reason and any(each.adds_tokens for each in added):
        reason = rejection_reason(growth.policy(), model.score_function)
    if reason:
        yield f"growth: {reason}"
    if any(each.new_layers for each in added):
        yield from _check_depth(growth)


def _check_depth(growth: GrowthBlock) -> Iterator[str]:
    """Reports a policy that cannot add layers."""
    if growth.preset == "official":
        yield "growth.preset = 'official': the official code cannot add layers; set preset to custom"
    if growth.depth == "copy-stack" and not growth.allow_jump:
        yield "growth.depth = 'copy-stack': changes the function; that needs growth.allow_jump = true"


def _grows(schedule: Schedule) -> bool:
    """Whether the schedule has a growth."""
    return any(is_grown(schedule, index) for index in range(len(schedule.stages)))


def _contradicted_preset(growth: GrowthBlock, wanted: dict[str, Any]) -> str:
    """The message for a preset that other keys contradict. Reports file a run under its preset, so it must be true."""
    keys = ", ".join(f"{key} = {shown(getattr(growth, key))} (not {shown(value)})" for key, value in wanted.items())
    return (
        f"growth.preset = {growth.preset!r}: is contradicted by {keys}; remove those keys (as an override: "
        "~growth.KEY), or set preset to custom"
    )


def _check_slope(schedule: Schedule) -> Iterator[str]:
    """Reports a learning-rate decay that an early end of a stage would cut short."""
    growth, rate = schedule.growth, schedule.learning_rate
    if growth.when != "slope" or (rate.shape, rate.span) != ("wsd", "ladder"):
        return
    steps = stage_steps(schedule)
    if round(rate.decay * sum(steps)) > steps[-1]:
        yield (
            f"learning_rate.decay = {rate.decay:g}: with growth.when = 'slope' the decay must fit into the last stage, "
            f"so {math.floor(1000 * steps[-1] / sum(steps)) / 1000:g} at most"
        )


def _check_tokenformer_keys(schedule: Schedule) -> Iterator[str]:
    """Reports keys that only work for tokenformers: a grown transformer does not separate old and new parameters."""
    growth = schedule.growth
    apart = {
        "preset": growth.preset if growth.preset in ("official", "paper-appendix") else None,
        "old_tokens": growth.old_tokens if growth.old_tokens != "train" else None,
        "lr_scale": growth.lr_scale,
        "weight_decay": growth.weight_decay,
        "rewarmup.of": growth.rewarmup.of if growth.rewarmup.of != "all" else None,
    }
    for key, value in apart.items():
        if value:
            yield f"growth.{key} = {shown(value)}: is for a tokenformer; a grown transformer has no old and new tokens"
    if growth.copy_noise and growth.operator is not None and growth.operator not in WIDENING:
        yield (
            f"growth.copy_noise = {growth.copy_noise:g}: goes with {' and '.join(sorted(WIDENING))}; "
            f"{growth.operator} copies whole blocks"
        )


def _check_ramps(schedule: Schedule) -> Iterator[str]:
    """Reports stages whose `ramp_steps` have nothing to ramp."""
    for index, (stage, steps) in enumerate(zip(schedule.stages, stage_steps(schedule), strict=True)):
        if stage.ramp_steps is None:
            continue
        where, tau = f"stages.{index}.ramp_steps = {stage.ramp_steps}", schedule.growth.tau
        if not is_grown(schedule, index):
            yield f"{where}: is for a stage that grows; leave it out"
        elif schedule.model.family == "transformer" or tau not in ("ramp", "anneal"):
            yield f"{where}: needs growth.tau ramp or anneal; leave it out"
        elif not growth_before(schedule, index).adds_tokens and index:
            yield f"{where}: is for a stage that adds parameter tokens; leave it out"
        elif stage.ramp_steps >= steps:
            yield f"{where}: must be less than the stage's {counted(steps, 'step')}"


def _check_steps(schedule: Schedule) -> Iterator[str]:
    """Reports the first stage whose model cannot be built. Runs only if the simpler checks found nothing."""
    built: list[StageModels] = []
    try:
        for models in stage_models(schedule):
            built.append(models)
    except UserError as error:
        yield f"stages.{len(built)}: {error}"


def _check_training(schedule: Schedule) -> Iterator[str]:
    rate = schedule.learning_rate
    if rate.final > rate.peak:
        yield f"learning_rate.final = {rate.final}: must not be above learning_rate.peak, {rate.peak}"
    if schedule.launch.kernels == "compiled" and schedule.launch.zero_stage == 3:
        yield "launch.kernels = 'compiled': needs launch.zero_stage 1 or 2; ZeRO-3 has no whole weights to compile with"
    nodes = schedule.launch.nodes
    if isinstance(nodes, list) and len(nodes) != len(schedule.stages):
        entries, stages = counted(len(nodes), "entry", "entries"), counted(len(schedule.stages), "stage")
        yield f"launch.nodes = {nodes}: has {entries} for {stages}; give one per stage"


def _check_control_blocks(schedule: Schedule) -> Iterator[str]:
    if schedule.controls and schedule.name and not RUN_NAME.fullmatch(schedule.name):
        yield f"name = {shown(schedule.name)}: must be {NAME_ALLOWED}"
    for index, control in enumerate(schedule.controls):
        here = f"controls.{index}"
        if reason := _control_problem(schedule, control.kind):
            yield f"{here}.kind = {control.kind!r}: {reason}"
        if control.kind in [other.kind for other in schedule.controls[:index]]:
            yield f"{here}.kind = {control.kind!r}: is already in the list; give that entry all the budgets"
        if len({f"{budget:g}" for budget in control.budgets}) < len(control.budgets):
            yield f"{here}.budgets = {shown(control.budgets)}: lists a budget twice; each may occur once"


def _control_problem(schedule: Schedule, kind: str) -> str | None:
    """Why this kind of control makes no sense for this ladder; None if it does."""
    tokenformer, num_stages = schedule.model.family == "tokenformer", len(schedule.stages)
    if kind == "tokenformer-scratch" and not tokenformer:
        return "the schedule has no tokenformer; use 'transformer-scratch'"
    if kind == "official-growth" and not tokenformer:
        return "the schedule has no tokenformer, and the official code grows nothing else"
    of_one_size = ("tokenformer-scratch", "best-scratch", "scratch-of-each-size", "single-jump")
    stages = range(len(schedule.stages))
    if kind in of_one_size and tokenformer and any(len(set(layer_tokens(schedule, index))) > 1 for index in stages):
        return "needs layers of equal size; this ladder grows only some layers"
    if kind == "transformer-scratch" and not num_layers(schedule, num_stages - 1):
        return "needs a ladder that ends with layers; a transformer has at least one"
    if kind == "single-jump" and num_stages < 3:
        return f"needs a ladder of three stages or more; this one has {num_stages}"
    if kind == "single-jump" and sum(is_grown(schedule, index) for index in stages[1:]) < 2:
        return "needs two growths or more between the stages; this ladder is a single jump itself"
    if kind == "official-growth" and not _grows(schedule):
        return "needs a ladder that grows; this one never does"
    if kind == "official-growth" and any(growth_before(schedule, index).new_layers for index in stages):
        return "the official code cannot add layers, and this ladder does"
    if kind == "official-growth" and not schedule.growth.departures("official"):
        return "the ladder itself grows by this policy; use another preset for it"
    return None


def _check_jump(schedule: Schedule) -> Iterator[str]:
    """Reports single jumps whose first stage already takes the whole budget."""
    for index, control in enumerate(schedule.controls):
        if control.kind == "single-jump":
            (first, *others), base_flops = plan_stages(schedule), schedule.base_flops or 0.0
            share = (base_flops + first.flops.total) / (base_flops + total_flops([first, *others]).total)
            if min(control.budgets) <= share:
                base = "the start checkpoint and " if base_flops else ""
                yield (
                    f"controls.{index}.budgets = {shown(control.budgets)}: must be above {share:.3g}; a single jump "
                    f"begins with {base}the first stage, which takes that share of the ladder's FLOPs"
                )


def _check_releases(schedule: Schedule) -> Iterator[str]:
    """Reports releases of stages that are finished already or cannot branch off, and controls that lack releases."""
    kinds = [control.kind for control in schedule.controls]
    if "scratch-of-each-size" not in kinds and not any(map(schedule.release_of, range(len(schedule.stages)))):
        return
    plans, rate = plan_stages(schedule), schedule.learning_rate
    if "scratch-of-each-size" in kinds:
        here = f"controls.{kinds.index('scratch-of-each-size')}.kind = 'scratch-of-each-size'"
        if rate.shape == "wsd" and not rate.decay:
            yield f"{here}: needs learning_rate.decay above 0, so that the controls decay too"
        elif len(finished_models(schedule, plans)) < 2:
            yield f"{here}: needs a ladder with finished models of two sizes or more; set releases to all"
    for plan in plans:
        asked, decayed = schedule.stages[plan.index].release, has_decayed(plan)
        here = f"stages.{plan.index}.release = {shown(asked)}" if asked else "releases = 'all'"
        if asked and decayed:
            yield (
                f"{here}: stage {plan.name} is finished already, because its learning rate has decayed at its end; "
                "leave this key out, and use the stage's own final/"
            )
        elif schedule.release_of(plan.index) and not decayed and (reason := reason_not_to_release(plan)):
            yield f"{here}: stage {plan.name} cannot be released: {reason}"
            if not asked:
                return  # the reason is the same for every stage that `releases` asks for
