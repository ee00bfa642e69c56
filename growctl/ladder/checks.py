"""Checks combinations of a schedule's values: tables of what is wrong and what is allowed instead.

Pydantic has accepted every single value before (growctl/schedule/). Errors read `path = value: what is allowed`.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, get_args

from pydantic import BaseModel

from growctl.ladder.budgets import stage_steps, stage_weights, step_flops
from growctl.ladder.controls import plan_controls
from growctl.ladder.sizes import growth_before, is_grown, layer_tokens, num_layers, stage_models, tokens_so_far
from growctl.ladder.stage_plans import (
    StagePlan,
    finished_models,
    has_decayed,
    plan_stages,
    reason_not_to_release,
    total_flops,
)
from growctl.runs_dir import NAME_ALLOWED, RUN_NAME
from growctl.schedule.blocks import Schedule, batch_key, contexts, longest_context, stage_batch
from growctl.schedule.data_block import DataBlock
from growctl.schedule.errors import problem_line
from growctl.schedule.fields import MOST_COUNTED
from growctl.schedule.training_blocks import MOMENTUM
from growctl.text.formatting import scientific
from growctl.text.suggestion import did_you_mean
from model.config import TokenformerConfig
from model.errors import UserError
from model.policy import invalid_combination, rejection_reason
from model.transformer_sizes import PRESERVING, WIDENING, Operator
from stages.counted import counted
from stages.data.spec import SourceSpec
from stages.engine.muon_limits import muon_conflicts

Row = tuple[str, object, str]
"""A dotted path, whether its value is wrong, and what is allowed there."""

_OF_A_SOURCE = (*(key for key in SourceSpec.model_fields if key != "source"), "approximate_tokens")
"""The keys of `data` that describe its source. The sources of a mixture have their own."""
_OF_A_START = ("num_layers", "hidden_size", "num_heads", "score_function", "rotary_fraction", "rotary_base")
"""Keys of `model` that must be those of the start checkpoint."""
_ROUNDING = 1e-9
"""More than the rounding of shares such as 1 - 0.8, relative to a budget."""


def check_combinations(schedule: Schedule) -> list[str]:
    """One line per combination of values that does not fit together; empty if the schedule is valid."""
    for tables in _TABLES:
        rows = [row for table in tables for row in table(schedule)]
        if lines := [_line(schedule, path, allowed) for path, is_wrong, allowed in rows if is_wrong]:
            return lines
    return []


def check_controls(schedule: Schedule) -> list[str]:
    """One line per control whose generated schedule is invalid. `schedule` itself must be valid.

    Kept apart from `check_combinations`, so that the schedule of a run stays readable if a control cannot run.
    """
    lines = []
    for index, block in enumerate(schedule.controls):
        extremes = sorted({min(block.budgets), max(block.budgets)})
        alone = schedule.model_copy(update={"controls": [block.model_copy(update={"budgets": extremes})]})
        try:
            reasons = [reason for control in plan_controls(alone) for reason in check_combinations(control.schedule)]
        except UserError as error:
            reasons = [str(error)]
        if reasons:
            allowed = f"cannot be run for this ladder, leave it out: {reasons[0]}"
            lines.append(_line(schedule, f"controls.{index}.kind", allowed))
    return lines


def _line(schedule: Schedule, path: str, allowed: str) -> str:
    value: Any = schedule
    for key in path.split(".") if path else ():
        if isinstance(value, Mapping):
            value = value.get(key)
        else:
            value = value[int(key)] if isinstance(value, list) else getattr(value, key, None)
    return problem_line(
        [path] if path else [], ... if value is None or isinstance(value, BaseModel) else value, allowed
    )


def _start(schedule: Schedule) -> Iterator[Row]:
    if schedule.start is None:
        return
    base, block = schedule.start.base, schedule.model
    yield "start.base", base is None, "is missing; growctl writes it when it loads a schedule from a file"
    yield "model.family", block.family != "tokenformer", "only a tokenformer can start from a checkpoint"
    if base is None:
        return
    model, of_base = base.model, f"as in the start checkpoint {base.path}"
    if not isinstance(model, TokenformerConfig):
        yield "start", True, f"{base.path} is a {model.family}; a run can only start from a tokenformer"
        return
    for key in _OF_A_START:
        advice = "; to add layers to it, set stages.0.num_layers" if key == "num_layers" else ""
        wanted, value = getattr(model, key), getattr(block, key)
        yield f"model.{key}", value != wanted, f"must be {wanted!r}, {of_base}{advice}"
    key = "model.vocab_size" if block.vocab_size or schedule.data.tokenizer_vocab_size else "data.vocab_size"
    entries = block.vocab_size or schedule.data.num_tokens
    yield key, entries not in (None, model.vocab_size), f"must be {model.vocab_size}, {of_base}"
    attention = [
        {sizes.num_tokens for name, sizes in layer.pattentions().items() if name != "ffn"} for layer in model.blocks
    ]
    uneven = any(len(sizes) > 1 for sizes in attention)
    yield "start", uneven, f"Q, K, V and O differ in size in {base.path}; a schedule has one size for all"


def _texts(schedule: Schedule) -> Iterator[Row]:
    data, is_mixed = schedule.data, bool(schedule.data.mixture)
    names = [source.name for source in data.mixture]
    yield "data.shared_tokenizer", data.shared_tokenizer is not None, "growctl computes it; leave it out"
    yield "data.source", not data.source and not is_mixed, "is missing; set it, or name several texts in data.mixture"
    yield "data.source", data.source and is_mixed, "data.mixture names texts too; drop one (override: ~data.source)"
    yield "data.when_exhausted", not is_mixed and data.when_exhausted != "stop", "is for data.mixture; leave it out"
    for key in _OF_A_SOURCE:
        is_set = getattr(data, key) != DataBlock.model_fields[key].default
        yield f"data.{key}", is_mixed and is_set, "is for data.source; with data.mixture, set it in its entries"
    for index, name in enumerate(names):
        yield f"data.mixture.{index}.name", name in names[:index], "another source has that name; each needs its own"
    for index, stage in enumerate(schedule.stages):
        followed = stage.followed or []
        steps = [each.first_step for each in followed]
        rises = steps[:1] == [0] and all(before < after for before, after in pairwise(steps))
        yield f"stages.{index}.followed", stage.followed is not None and not rises, "growctl writes this; leave it out"
        weights = {"mixture": stage.mixture} if stage.mixture is not None else {}
        weights |= {f"followed.{number}.weights": each.weights for number, each in enumerate(followed)}
        for key, each in weights.items():
            here = f"stages.{index}.{key}"
            yield here, not is_mixed, "data.mixture names no sources to weight; leave it out, or set data.mixture"
            yield here, not any(each.values()), "all weights are 0; set at least one above 0"
            for name in each if is_mixed else ():
                allowed = f"must be one of {', '.join(names)}, the sources of data.mixture{did_you_mean(name, names)}"
                yield f"{here}.{name}", name not in names, allowed


def _model(schedule: Schedule) -> Iterator[Row]:
    model, data, num_tokens = schedule.model, schedule.data, schedule.data.num_tokens
    is_missing = not (model.vocab_size or num_tokens)
    yield "model.vocab_size", is_missing, "is missing; set it to the number of entries of data.tokenizer"
    at_url = not (data.vocab_size or data.tokenizer_vocab_size) and any("://" in (s.source or "") for s in data.specs)
    advice = "; if a text is a prepared dataset at a URL, open it first: `growctl data show URL`" if at_url else ""
    too_few = model.vocab_size and num_tokens and model.vocab_size < num_tokens
    yield "model.vocab_size", too_few, f"must be at least the tokenizer's {num_tokens}{advice}"
    has_ffn_size = model.family == "tokenformer" and model.ffn_size is not None
    yield "model.ffn_size", has_ffn_size, "is for a transformer; a tokenformer's stages have ffn_tokens"
    yield "model.num_heads", model.hidden_size % model.num_heads, f"must divide model.hidden_size, {model.hidden_size}"
    head_width = model.hidden_size // model.num_heads
    turned = int(head_width * model.rotary_fraction)
    uneven = model.rotary_fraction and not model.hidden_size % model.num_heads and (turned < 2 or turned % 2)
    allowed = f"rotates {turned} of a head's {head_width} dimensions; that must be even and 2 or more, or 0"
    yield "model.rotary_fraction", uneven, allowed


def _stages(schedule: Schedule) -> Iterator[Row]:
    names = [stage.name for stage in schedule.stages]
    foreign = dict.fromkeys(("hidden_size", "ffn_size"), "a tokenformer grows by tokens and layers only")
    if schedule.model.family == "transformer":
        foreign = dict.fromkeys(("attention_tokens", "ffn_tokens", "layers"), "a transformer has no parameter tokens")
    for index, stage in enumerate(schedule.stages):
        yield f"stages.{index}.name", stage.name in names[:index], "another stage has that name; each needs its own"
        for key, allowed in foreign.items():
            yield f"stages.{index}.{key}", getattr(stage, key) is not None, f"{allowed}; leave it out"


def _budgets(schedule: Schedule) -> Iterator[Row]:
    training, before = schedule.training, 0.0
    shared = next((key for key in ("ladder_tokens", "ladder_flops") if getattr(training, key) is not None), None)
    has_both = training.ladder_tokens is not None and training.ladder_flops is not None
    yield "training.ladder_flops", has_both, "training has ladder_tokens too; drop one (as an override: ~KEY)"
    for index, stage in enumerate(schedule.stages):
        here, until = f"stages.{index}", stage.until
        is_last, step = index + 1 == len(schedule.stages), stage_batch(schedule, index).tokens
        own = [key for key in ("train_tokens", "train_steps") if getattr(stage, key) is not None]
        both = f"has both train_tokens and train_steps; drop one (override: ~{here}.train_tokens)"
        yield here, len(own) == 2, both
        if shared is None:
            allowed = "is a share of the whole ladder's budget: set training.ladder_tokens or training.ladder_flops"
            yield f"{here}.until", until is not None, allowed
            yield here, not own and until is None, "needs train_tokens, train_steps or until"
            too_few = stage.train_tokens is not None and stage.train_tokens < step
            yield f"{here}.train_tokens", too_few, f"must be {step} or more, the tokens of one step"
            continue
        for key in own:
            yield f"{here}.{key}", True, f"training.{shared} is the budget of all stages; drop one of the two"
        needed = f"is missing; with training.{shared}, each stage but the last ends at a share of it"
        yield f"{here}.until", until is None and not is_last, needed
        at_the_end = until is not None and (until == 1) != is_last
        yield f"{here}.until", at_the_end, "must be 1 in the last stage, and below 1 in the others"
        falls = until is not None and until <= before
        yield f"{here}.until", falls, f"must be above {before:g}, where the stage before ends"
        before = max(before, until or 0.0)


def _sizes(schedule: Schedule) -> Iterator[Row]:
    is_transformer = schedule.model.family == "transformer"
    yield "model.num_layers", is_transformer and schedule.model.num_layers == 0, "must be 1 or more for a transformer"
    for index, stage in enumerate(schedule.stages):
        here, before = f"stages.{index}.num_layers", num_layers(schedule, index - 1)
        if is_transformer:
            yield here, stage.num_layers == 0, "must be 1 or more for a transformer"
            continue
        shrinks = stage.num_layers is not None and (index > 0 or schedule.base) and stage.num_layers < before
        yield here, shrinks, f"must be {before} or more, the depth of {_whose(index)}; a growth only adds"
        if stage.layers is not None:
            allowed = _why_not_these_layers(schedule, index, stage.layers, before)
            yield f"stages.{index}.layers", allowed, allowed or ""
    depths = [num_layers(schedule, index) for index in range(len(schedule.stages))]
    if any(depths) and not is_transformer and not (schedule.base and num_layers(schedule, -1)):
        first = next(index for index, depth in enumerate(depths) if depth)
        for key, tokens in zip(("attention_tokens", "ffn_tokens"), tokens_so_far(schedule, first), strict=True):
            yield f"stages.{first}.{key}", not tokens, "is missing; the first stage with layers needs a number of them"


def _why_not_these_layers(schedule: Schedule, index: int, layers: list[int], depth: int) -> str | None:
    """Why a growth of these `layers` before stage `index` is impossible; None if it is possible."""
    stage = schedule.stages[index]
    if index == 0 and schedule.start is None:
        return "is for a growth; the first stage always has all layers"
    if stage.num_layers is not None:
        return "goes without num_layers, which grows all layers; grow some of them in a stage of its own"
    if not layers or max(layers) >= depth or len(set(layers)) < len(layers):
        return f"must be one or more different layers, from 0 to {depth - 1}" if depth else "the model has no layers"
    if stage.attention_tokens is None and stage.ffn_tokens is None:
        return "says which layers grow, but not to what; add attention_tokens or ffn_tokens"
    return None


def _growths(schedule: Schedule) -> Iterator[Row]:
    reads = [(stage_batch(schedule, index), stage_weights(schedule, index)) for index in range(len(schedule.stages))]
    for index, stage in enumerate(schedule.stages):
        here, growth = f"stages.{index}", growth_before(schedule, index)
        for key in ("attention_tokens", "ffn_tokens"):
            fewest = min(getattr(growth, key), default=0)
            least = (getattr(stage, key) or 0) - fewest
            yield f"{here}.{key}", fewest < 0, f"must be {least} or more, as in {_whose(index)}; a growth only adds"
        if schedule.growth.depth == "copy-stack" and growth.new_layers:
            before = len(growth.attention_tokens)
            allowed = f"must be a multiple of the {before} of {_whose(index)} with growth.depth = 'copy-stack'"
            yield f"{here}.num_layers", not before or num_layers(schedule, index) % before, allowed
        repeats = index > 0 and not is_grown(schedule, index) and reads[index] == reads[index - 1]
        yield here, repeats, "has the size, batch, context and mixture of the stage before; merge them, or change one"


def _whose(index: int) -> str:
    return "the stage before" if index else "the start checkpoint"


def _batches(schedule: Schedule) -> Iterator[Row]:
    training, longest = schedule.training, longest_context(schedule)
    usual = training.batch_size * training.sequence_length
    for index, stage in enumerate(schedule.stages):
        here, length = f"stages.{index}", stage.sequence_length or training.sequence_length
        tokens, size = stage.batch_tokens, stage.batch_size
        differ = tokens is not None and size is not None and size * length != tokens
        yield f"{here}.batch_tokens", differ, f"must be batch_size x sequence_length, {size} x {length}; drop one"
        uneven = tokens is not None and size is None and tokens % length
        yield f"{here}.batch_tokens", uneven, f"must be a multiple of the stage's sequence_length, {length}"
        only_length = tokens is None and size is None and stage.sequence_length is not None
        allowed = f"must divide the {usual} tokens of training's step; set {here}.batch_size too"
        yield f"{here}.sequence_length", only_length and usual % length and not longest % length, allowed
        key = f"{here}.sequence_length" if stage.sequence_length else "training.sequence_length"
        yield key, longest % length, f"must divide the longest context of the ladder, {longest}"
    lengths = ", ".join(map(str, contexts(schedule)))
    several = schedule.data.packing == "best_fit" and len(contexts(schedule)) > 1
    yield "data.packing", several, f"needs one sequence_length in all stages, and they have {lengths}; use concatenate"


def _micro_batch(schedule: Schedule) -> Iterator[Row]:
    micro = schedule.launch.micro_batch_size
    batches: dict[str, int] = {}
    for index in range(len(schedule.stages)):
        batches.setdefault(batch_key(schedule, index), stage_batch(schedule, index).batch_size)
    for key, batch in batches.items():
        allowed = f"must divide the batch that {key} sets, {batch} sequences"
        yield "launch.micro_batch_size", micro != "auto" and batch % micro, allowed


def _training(schedule: Schedule) -> Iterator[Row]:
    rate, launch, optimizer = schedule.learning_rate, schedule.launch, schedule.optimizer
    yield "learning_rate.final", rate.final > rate.peak, f"must be {rate.peak} or less, learning_rate.peak"
    is_whole = launch.kernels == "compiled" and launch.zero_stage == 3
    yield "launch.kernels", is_whole, "needs launch.zero_stage 1 or 2; ZeRO-3 has no whole weights to compile with"
    per_stage = isinstance(launch.nodes, list) and len(launch.nodes) != len(schedule.stages)
    yield "launch.nodes", per_stage, f"must have one entry per stage, {len(schedule.stages)}"
    if optimizer.name != "muon":
        other = "is for optimizer.name = 'muon'; leave it out"
        yield "optimizer.muon_lr_scale", optimizer.muon_lr_scale is not None, other
        yield "optimizer.momentum", optimizer.momentum != MOMENTUM, f"{other}; AdamW's is the first of optimizer.betas"
        return
    for conflict in muon_conflicts(
        gradient_clipping=optimizer.gradient_clipping,
        offload=launch.offload,
        zero_stage=launch.zero_stage,
        precision=schedule.training.precision,
    ):
        yield "", True, conflict


def _growth(schedule: Schedule) -> Iterator[Row]:
    growth, rate = schedule.growth, schedule.learning_rate
    added = [growth_before(schedule, index) for index in range(len(schedule.stages))]
    grows, ends_early = _grows(schedule), growth.when == "slope"
    if growth.preset != "custom" and (departures := growth.departures(growth.preset)):
        wanted = ", ".join(f"{key} = {value!r}" for key, value in departures.items())
        allowed = f"sets {wanted}; drop your values (as an override: ~growth.KEY), or set preset to custom"
        yield "growth.preset", True, allowed
        return
    yield "growth.slope", ends_early and growth.slope is None, "is missing; growth.when = 'slope' needs it"
    yield "growth.slope", not ends_early and growth.slope is not None, "goes with growth.when = 'slope'"
    undecayed = (rate.shape, rate.span) == ("wsd", "ladder")
    yield "growth.when", ends_early and not undecayed, "needs learning_rate.shape wsd and learning_rate.span ladder"
    if schedule.model.family == "transformer":
        yield from _transformer_growth(schedule) if grows else ()
        return
    yield "growth.operator", growth.operator is not None, "is for a transformer; a tokenformer grows by growth.init"
    reason = invalid_combination(growth.init, growth.tau, growth.copy_noise)
    if not reason and any(each.adds_tokens for each in added):
        reason = rejection_reason(growth.policy(), schedule.model.score_function)
    yield "growth", reason, reason or ""
    deepens = any(each.new_layers for each in added)
    yield "growth.preset", deepens and growth.preset == "official", "the official code cannot add layers; use custom"
    jumps = deepens and growth.depth == "copy-stack" and not growth.allow_jump
    yield "growth.depth", jumps, "changes the function; that needs growth.allow_jump = true"


def _transformer_growth(schedule: Schedule) -> Iterator[Row]:
    growth, operators = schedule.growth, get_args(Operator)
    yield "growth.operator", growth.operator is None, f"is missing; must be one of {', '.join(operators)}"
    jumps = growth.operator not in (None, *PRESERVING) and not growth.allow_jump
    yield "growth.operator", jumps, "changes the function; that needs growth.allow_jump = true"
    for key, is_set in {
        "depth": growth.depth != "append",
        "preset": growth.preset in ("official", "paper-appendix"),
        "old_tokens": growth.old_tokens != "train",
        "lr_scale": growth.lr_scale,
        "weight_decay": growth.weight_decay,
        "rewarmup.of": growth.rewarmup.of != "all",
    }.items():
        yield f"growth.{key}", is_set, "is for a tokenformer; a grown transformer has no old and new tokens"
    noisy = growth.copy_noise and growth.operator not in (None, *WIDENING)
    yield "growth.copy_noise", noisy, f"goes with growth.operator {' or '.join(sorted(WIDENING))}"


def _grows(schedule: Schedule) -> bool:
    return any(is_grown(schedule, index) for index in range(len(schedule.stages)))


def _controls(schedule: Schedule) -> Iterator[Row]:
    kinds = [control.kind for control in schedule.controls]
    unnamed = bool(kinds and schedule.name) and not RUN_NAME.fullmatch(str(schedule.name))
    yield "name", unnamed, f"must be {NAME_ALLOWED}"
    for index, control in enumerate(schedule.controls):
        here, reason = f"controls.{index}", _why_no_control(schedule, control.kind)
        yield f"{here}.kind", reason, reason or ""
        yield f"{here}.kind", control.kind in kinds[:index], "is already in the list; give that entry all the budgets"
        twice = len({f"{budget:g}" for budget in control.budgets}) < len(control.budgets)
        yield f"{here}.budgets", twice, "lists a budget twice; each may occur once"


def _why_no_control(schedule: Schedule, kind: str) -> str | None:
    """Why this kind of control makes no sense for this ladder; None if it does."""
    num_stages, is_tokenformer = len(schedule.stages), schedule.model.family == "tokenformer"
    stages = range(num_stages)
    if kind in ("tokenformer-scratch", "official-growth") and not is_tokenformer:
        return "needs a tokenformer; the schedule has none"
    of_one_size = ("tokenformer-scratch", "best-scratch", "scratch-of-each-size", "single-jump")
    if kind in of_one_size and is_tokenformer and any(len(set(layer_tokens(schedule, index))) > 1 for index in stages):
        return "needs layers of equal size; this ladder grows only some layers"
    if kind == "transformer-scratch" and not num_layers(schedule, num_stages - 1):
        return "needs a ladder that ends with layers; a transformer has at least one"
    if kind == "single-jump" and (num_stages < 3 or sum(is_grown(schedule, index) for index in stages[1:]) < 2):
        return "needs three stages or more, with two growths or more between them"
    if kind == "official-growth" and not _grows(schedule):
        return "needs a ladder that grows; this one never does"
    if kind == "official-growth" and any(growth_before(schedule, index).new_layers for index in stages):
        return "the official code cannot add layers, and this ladder does"
    if kind == "official-growth" and not schedule.growth.departures("official"):
        return "the ladder itself grows by this policy; use another preset for it"
    return None


def _models(schedule: Schedule) -> Iterator[Row]:
    """The first stage whose model cannot be built."""
    models = stage_models(schedule)
    for index in range(len(schedule.stages)):
        try:
            next(models)
        except UserError as error:
            yield f"stages.{index}", True, str(error)
            return


def _ladder_budget(schedule: Schedule) -> Iterator[Row]:
    """A budget of the whole ladder in which a stage gets less than a step."""
    training, indices = schedule.training, range(len(schedule.stages))
    if training.ladder_tokens is not None:
        key, budget = "training.ladder_tokens", float(training.ladder_tokens)
        costs = [float(stage_batch(schedule, index).tokens) for index in indices]
    elif training.ladder_flops is not None:
        key, budget = "training.ladder_flops", training.ladder_flops
        costs = [step_flops(schedule, index, models.final).total for index, models in enumerate(stage_models(schedule))]
    else:
        return
    ends = [0.0, *(stage.until or 1.0 for stage in schedule.stages)]
    fewest = max(cost / (end - before) for cost, (before, end) in zip(costs, pairwise(ends), strict=True))
    is_short = budget < fewest * (1 - _ROUNDING)
    shown = scientific(fewest * 1.01) if fewest >= 10**9 else str(int(-(-fewest // 1)))
    yield key, is_short, f"must be {shown} or more, so that every stage has a step"
    too_many = not is_short and max(stage_steps(schedule)) > MOST_COUNTED
    yield key, too_many, f"gives a stage more than {scientific(MOST_COUNTED)} steps; lower it"


def _ramps(schedule: Schedule) -> Iterator[Row]:
    can_ramp = schedule.model.family == "tokenformer" and schedule.growth.tau in ("ramp", "anneal")
    for index, (stage, steps) in enumerate(zip(schedule.stages, stage_steps(schedule), strict=True)):
        if stage.ramp_steps is not None:
            adds_tokens = is_grown(schedule, index) and (not index or growth_before(schedule, index).adds_tokens)
            here = f"stages.{index}.ramp_steps"
            yield here, not adds_tokens, "is for a stage that adds parameter tokens; leave it out"
            yield here, adds_tokens and not can_ramp, "needs a tokenformer with growth.tau ramp or anneal; leave it out"
            yield here, stage.ramp_steps >= steps, f"must be less than the stage's {counted(steps, 'step')}"


def _decay(schedule: Schedule) -> Iterator[Row]:
    """A learning-rate decay that an early end of a stage would cut short."""
    steps, decay = stage_steps(schedule), schedule.learning_rate.decay
    is_cut = schedule.growth.when == "slope" and round(decay * sum(steps)) > steps[-1]
    most = int(1000 * steps[-1] / sum(steps)) / 1000
    yield "learning_rate.decay", is_cut, f"must be {most:g} or less with growth.when = 'slope', to fit the last stage"


def _jump(schedule: Schedule) -> Iterator[Row]:
    """Single jumps whose first stage already takes the whole budget."""
    for index, control in enumerate(schedule.controls):
        if control.kind == "single-jump":
            plans, base_flops = plan_stages(schedule), schedule.base_flops or 0.0
            share = (base_flops + plans[0].flops.total) / (base_flops + total_flops(plans).total)
            allowed = f"must be above {share:.3g}, the share of the ladder's FLOPs that its first stage takes"
            yield f"controls.{index}.budgets", min(control.budgets) <= share, allowed


def _trigger(schedule: Schedule) -> Iterator[Row]:
    """A slope that can never end a stage early."""
    growth, every = schedule.growth, schedule.evaluation.every
    for plan in plan_stages(schedule)[:-1] if growth.when == "slope" else ():
        evaluations = _counted_evaluations(plan, every)
        most = (plan.num_steps - max(1, plan.settled_step)) // growth.slope_window
        advice = f"set evaluation.every to {most} or less" if most else "train the stage longer"
        allowed = (
            f"can never end stage {plan.name} early: its slope needs growth.slope_window = {growth.slope_window} "
            f"evaluations after warm-up and ramp, and evaluation.every = {every} leaves {evaluations}; {advice}"
        )
        yield "growth.when", evaluations < growth.slope_window, allowed


def _counted_evaluations(plan: StagePlan, every: int) -> int:
    """The number of evaluations before a stage's last step that count for its slope."""
    first = max(1, -(-plan.settled_step // every))
    return max(0, (plan.num_steps - 1) // every - first + 1)


def _releases(schedule: Schedule) -> Iterator[Row]:
    """Releases of stages that are finished already or cannot branch off, and controls that lack releases."""
    kinds = [control.kind for control in schedule.controls]
    if "scratch-of-each-size" not in kinds and not any(map(schedule.release_of, range(len(schedule.stages)))):
        return
    plans, rate = plan_stages(schedule), schedule.learning_rate
    if "scratch-of-each-size" in kinds:
        here = f"controls.{kinds.index('scratch-of-each-size')}.kind"
        yield here, rate.shape == "wsd" and not rate.decay, "needs learning_rate.decay above 0, so that controls decay"
        too_few = len(finished_models(schedule, plans)) < 2
        yield here, too_few, "needs a ladder with finished models of two sizes or more; set releases to all"
    for plan in plans:
        asked = bool(schedule.stages[plan.index].release)
        here = f"stages.{plan.index}.release" if asked else "releases"
        decayed, reason = has_decayed(plan), reason_not_to_release(plan)
        yield here, asked and decayed, f"stage {plan.name} ends finished, its learning rate has decayed; leave this out"
        cannot = schedule.release_of(plan.index) and not decayed and reason
        yield here, cannot, f"stage {plan.name} cannot be released: {reason}"
        if cannot and not asked:
            return  # the reason is the same for every stage that `releases` asks for


_TABLES: tuple[tuple[Callable[[Schedule], Iterator[Row]], ...], ...] = (
    (_start,),
    (_texts, _model, _stages, _budgets, _sizes, _batches, _training, _growth, _controls),
    (_growths, _micro_batch),
    (_models,),
    (_ladder_budget,),
    (_ramps, _decay, _jump),
    (_trigger, _releases),
)
"""A table may compute with values that those before it have accepted."""
