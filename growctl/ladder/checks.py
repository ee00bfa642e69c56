"""Checks combinations of a schedule's values: tables of what is wrong and what is allowed instead.

Pydantic has accepted every single value before (growctl/schedule/). Errors read `path = value: what is allowed`.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, pairwise
from typing import Any

from pydantic import BaseModel

from growctl.ladder.controls import of_depth
from growctl.ladder.sizes import Growth, growth_of, num_layers, stage_models, tokens_so_far
from growctl.ladder.stage_plans import finished_models, plan_stages, stage_steps, step_costs
from growctl.runs_dir import NAME_ALLOWED, RUN_NAME
from growctl.schedule.blocks import DECODER_KEYS, SHARED_KEYS, Schedule
from growctl.schedule.data_block import DataBlock
from growctl.schedule.errors import problem_line
from growctl.text.formatting import scientific
from growctl.text.suggestion import did_you_mean
from model.errors import UserError
from model.policy import invalid_combination
from model.shapes import model_shape
from model.tokenformer_config import PATTENTIONS, TokenformerConfig
from stages.data.spec import SourceSpec

Row = tuple[str, object, str]
"""A dotted path, whether its value is wrong, and what is allowed there."""

_OF_A_SOURCE = [f"data.{key}" for key in (*SourceSpec.model_fields, "approximate_tokens") if key != "source"]
_OF_A_DECODER = [f"model.{key}" for key in ("ffn_tokens", *DECODER_KEYS)]
_KEYS_OF_A_CHOICE = (
    ("data.mixture", "", ("data.when_exhausted", "stages.N.mixture")),
    ("data.source", "", _OF_A_SOURCE),
    ("model.family", "decoder", ("stages.N.hidden_size", "stages.N.num_heads", *_OF_A_DECODER)),
    ("model.family", "tokenformer", ("model.score_function", "model.routing")),
    ("model.family", "tokenformer", ("stages.N.attention_tokens", "stages.N.layers")),
    ("model.attention_window", "", ("model.full_attention_every",)),
    ("model.rotary_scaling.kind", "llama3", [f"model.rotary_scaling.{key}" for key in ("low_turns", "high_turns")]),
    ("optimizer.name", "muon", ("optimizer.muon_lr_scale", "optimizer.momentum")),
    ("growth.when", "slope", ("growth.slope",)),
)
"""The path of a choice, its value (empty: any), and the keys that only mean something with it."""
_OF_A_TEXT = (
    *(f"data.{key}" for key in DataBlock.model_fields if key != "images" and f"data.{key}" not in _OF_A_SOURCE),
    *(f"model.{key}" for key in ("vocab_size", "tie_embeddings", "rotary_fraction", "rotary_base", "rotary_scaling")),
    *(f"model.{key}" for key in ("attention_window", "full_attention_every")),
    "samples.prompts",
)
_OF_A_START = ("family", "num_layers", *SHARED_KEYS)
"""Keys of `model` that must be those of the start checkpoint."""
_NAME_TAKEN = "another one has that name; each needs its own"


def check_combinations(schedule: Schedule) -> list[str]:
    """One line per combination of values that does not fit together; empty if the schedule is valid."""
    for tables in _TABLES:
        lines = []
        for path, is_wrong, allowed in chain.from_iterable(table(schedule) for table in tables):
            if is_wrong:
                value = _at(schedule, path)
                lines.append(problem_line([path], ... if isinstance(value, BaseModel | None) else value, allowed))
        if lines:
            return list(dict.fromkeys(lines))
    return []


def _at(block: Any, path: str) -> Any:
    """The value at a dotted path; None if there is none."""
    for key in path.split("."):
        if isinstance(block, Mapping):
            block = block.get(key)
        else:
            block = block[int(key)] if isinstance(block, list) else getattr(block, key, None)
    return block


def _is_set(schedule: Schedule, path: str) -> bool:
    """Whether the key at a dotted path has another value than its default."""
    block, _, key = path.rpartition(".")
    field = type(_at(schedule, block)).model_fields[key]
    return bool(_at(schedule, path) != field.get_default(call_default_factory=True))


def _choices(schedule: Schedule) -> Iterator[Row]:
    """Keys of a choice that the schedule does not make."""
    for choice, wanted, keys in _KEYS_OF_A_CHOICE:
        value = _at(schedule, choice)
        unmet = value not in (wanted, None) if wanted else not value
        for path in (key.replace("N", str(i)) for key in keys for i in range(len(schedule.stages))):
            yield path, unmet and _is_set(schedule, path), f"is for {choice}{wanted and f' = {wanted!r}'}; leave it out"


def _start(schedule: Schedule) -> Iterator[Row]:
    base, block, lacks_base = schedule.base, schedule.model, schedule.start and not schedule.base
    yield "start.base", lacks_base, "is missing; growctl writes it when it loads a schedule from a file"
    if base is None:
        return
    model, of_base = base.model, f"as in the start checkpoint {base.path}"
    own: tuple[str, ...] = ("score_function",) if model.family == "tokenformer" else ("ffn_tokens", *DECODER_KEYS)
    defaults: dict[str, Any] = {"num_kv_heads": block.num_heads, "head_width": block.hidden_size // block.num_heads}
    defaults["ffn_tokens"] = block.ffn_tokens or getattr(model, "ffn_tokens", None)
    given = {key: getattr(block, key) for key in _OF_A_START + own} | defaults | block.shared()
    for key in _OF_A_START + (own if block.family == model.family else ()):
        advice = "; to add layers to it, set stages.0.num_layers" if key == "num_layers" else ""
        yield f"model.{key}", given[key] != getattr(model, key), f"must be {getattr(model, key)!r}, {of_base}{advice}"
    yield "model.routing", block.routing, "is for a new model; leave it out with a start checkpoint"
    yield "model.image", block.image != model.image, f"must be {model.image and model.image.model_dump()}, {of_base}"
    key = "model.vocab_size" if block.vocab_size or schedule.data.tokenizer_vocab_size else "data.vocab_size"
    key = "data.images.num_classes" if schedule.data.images else key
    entries = block.vocab_size or schedule.data.num_tokens
    is_other = entries not in (None, model.vocab_size) and bool(schedule.data.images) == bool(model.image)
    yield key, is_other, f"must be {model.vocab_size}, {of_base}"
    blocks = model.blocks if isinstance(model, TokenformerConfig) else ()
    sizes = [{getattr(block, name).num_tokens for name in PATTENTIONS if name != "ffn"} for block in blocks]
    uneven = any(len(of_a_block) > 1 for of_a_block in sizes)
    yield "start", uneven, f"Q, K, V and O differ in size in {base.path}; a schedule has one size for all"


def _texts(schedule: Schedule) -> Iterator[Row]:
    data, names = schedule.data, [source.name for source in schedule.data.mixture]
    is_missing = not (data.source or names or data.images or schedule.model.image)
    yield "data.source", is_missing, "is missing; set it, or name several texts in data.mixture, or set data.images"
    yield "data.source", data.source and names, "data.mixture names texts too; drop one (override: ~data.source)"
    for index, name in enumerate(names):
        yield f"data.mixture.{index}.name", name in names[:index], _NAME_TAKEN
    for index, stage in enumerate(schedule.stages):
        here, weights = f"stages.{index}.mixture", stage.mixture
        yield here, weights and not any(weights.values()), "all weights are 0; set at least one above 0"
        for name in weights or () if names else ():
            allowed = f"must be one of {', '.join(names)}, the sources of data.mixture{did_you_mean(name, names)}"
            yield f"{here}.{name}", name not in names, allowed


def _images(schedule: Schedule) -> Iterator[Row]:
    image, images = schedule.model.image, schedule.data.images
    yield "model.image", images and not image, "is missing; data.images needs a model of images"
    yield "data.images", image and not images, "is missing; model.image needs images to train on"
    if not image or not images:
        return
    for path in _OF_A_TEXT:
        yield path, _is_set(schedule, path), "is for text; leave it out with data.images"
    for path in ("training.sequence_length", *(f"stages.{i}.sequence_length" for i in range(len(schedule.stages)))):
        is_other = _at(schedule, path) not in (None, image.sequence_length)
        yield path, is_other, f"must be {image.sequence_length}, the data tokens of an image"
    key = "data.images.validation_fraction"
    yield key, images.validation and _is_set(schedule, key), "data.images.validation is set; drop one of the two"


def _model(schedule: Schedule) -> Iterator[Row]:
    model, num_tokens = schedule.model, schedule.data.num_tokens
    is_missing = not (model.vocab_size or num_tokens)
    yield "model.vocab_size", is_missing, "is missing; set it to the number of entries of data.tokenizer"
    too_few = model.vocab_size and num_tokens and model.vocab_size < num_tokens
    yield "model.vocab_size", too_few, f"must be at least the tokenizer's {num_tokens}"
    uneven = not model.head_width and model.hidden_size % model.num_heads
    yield "model.num_heads", uneven, f"must divide model.hidden_size, {model.hidden_size}, or set model.head_width"
    shared = f"must divide model.num_heads, {model.num_heads}"
    yield "model.num_kv_heads", model.num_heads % (model.num_kv_heads or 1), shared
    head_width = model.head_width or model.hidden_size // model.num_heads
    turned = int(head_width * model.rotary_fraction)
    odd = model.rotary_fraction and not uneven and (turned < 2 or turned % 2)
    allowed = f"rotates {turned} of a head's {head_width} dimensions; that must be even and 2 or more, or 0"
    yield "model.rotary_fraction", odd, allowed
    is_idle = not schedule.base and (model.attention_window or 0) > schedule.longest_context
    allowed = f"must be at most the longest context, {schedule.longest_context}; leave it out to attend to all tokens"
    yield "model.attention_window", is_idle, allowed
    if scaling := model.rotary_scaling:
        falls = scaling.high_turns <= scaling.low_turns
        yield "model.rotary_scaling.high_turns", falls, f"must be above low_turns, {scaling.low_turns:g}"
        yield "model.rotary_scaling", not model.rotary_fraction, "has nothing to scale: model.rotary_fraction is 0"


def _budgets(schedule: Schedule) -> Iterator[Row]:
    before, training = 0.0, schedule.training
    shared = [key for key in ("ladder_tokens", "ladder_flops") if getattr(training, key) is not None]
    yield "training.ladder_flops", len(shared) > 1, "training has ladder_tokens too; drop one (as an override: ~KEY)"
    for index, stage in enumerate(schedule.stages):
        here, until = f"stages.{index}", stage.until
        is_last, step = index + 1 == len(schedule.stages), schedule.batch_of(index).tokens
        own = [key for key in ("train_tokens", "train_steps") if getattr(stage, key) is not None]
        yield here, len(own) == 2, f"has both train_tokens and train_steps; drop one (override: ~{here}.train_tokens)"
        if not shared:
            yield f"{here}.until", until is not None, "is a share of training.ladder_tokens or ladder_flops; set one"
            yield here, not own and until is None, "needs train_tokens, train_steps or until"
            too_few = stage.train_tokens is not None and stage.train_tokens < step
            yield f"{here}.train_tokens", too_few, f"must be {step} or more, the tokens of one step"
            continue
        for key in own:
            yield f"{here}.{key}", True, f"training.{shared[0]} is the budget of all stages; drop one of the two"
        end = until or (1.0 if is_last else 0.0)
        allowed = f"must be above {before:g}, where the stage before ends, and 1 in the last stage alone"
        yield f"{here}.until", end <= before or (end == 1) != is_last, allowed
        before = max(before, end)


def _stages(schedule: Schedule) -> Iterator[Row]:
    width, is_decoder = schedule.model.hidden_size, schedule.model.family == "decoder"
    names, needs_layers = [stage.name for stage in schedule.stages], "must be 1 or more for a decoder"
    yield "model.num_layers", is_decoder and schedule.model.num_layers == 0, needs_layers
    for key in () if schedule.start else ("hidden_size", "num_heads"):
        yield f"stages.0.{key}", getattr(schedule.stages[0], key), f"is for a growth; the first stage has model.{key}"
    for index, stage in enumerate(schedule.stages):
        here, wider = f"stages.{index}", stage.hidden_size or width
        yield f"{here}.name", stage.name in names[:index], _NAME_TAKEN
        yield f"{here}.num_layers", is_decoder and stage.num_layers == 0, needs_layers
        yield f"{here}.hidden_size", wider % width, f"must be a whole multiple of {width}, the width before"
        width = wider
        if not is_decoder and (layers := stage.layers) is not None:
            before, grows = num_layers(schedule, index - 1), index > 0 or schedule.start is not None
            sizes = (stage.attention_tokens, stage.ffn_tokens)
            unknown = not layers or max(layers) >= before or len(set(layers)) < len(layers)
            wrong = unknown or not grows or stage.num_layers is not None or sizes == (None, None)
            what = f"some of the {before} layers, counted from 0 and each once, to attention_tokens or ffn_tokens"
            yield f"{here}.layers", wrong, f"is for a growth of {what}, without num_layers"
    depths = [num_layers(schedule, index) for index in range(len(schedule.stages))]
    if any(depths) and not (schedule.base and num_layers(schedule, -1)):
        first = next(index for index, depth in enumerate(depths) if depth)
        needed = zip(("attention_tokens", "ffn_tokens"), tokens_so_far(schedule, first), strict=True)
        for key, tokens in list(needed)[is_decoder:]:
            yield f"stages.{first}.{key}", not tokens, "is missing; the first stage with layers needs a number of them"


def _batches(schedule: Schedule) -> Iterator[Row]:
    training, longest = schedule.training, schedule.longest_context
    usual = training.batch_size * training.sequence_length
    for index, stage in enumerate(schedule.stages):
        here, length = f"stages.{index}", stage.sequence_length or training.sequence_length
        uneven = stage.batch_size is None and not longest % length and usual % length
        allowed = f"must divide the {usual} tokens of training's step; set {here}.batch_size too"
        yield f"{here}.sequence_length", uneven, allowed
        key = f"{here}.sequence_length" if stage.sequence_length else "training.sequence_length"
        yield key, longest % length, f"must divide the longest context of the ladder, {longest}"
        key, batch = schedule.batch_key(index), schedule.batch_of(index).batch_size
        unsplit = not (uneven or longest % length) and batch % schedule.launch.least_micro_batch_size
        yield "launch.micro_batch_size", unsplit, f"must divide the batch that {key} sets, {batch} sequences"
    several = schedule.data.packing == "best_fit" and len(schedule.contexts) > 1
    yield "data.packing", several, "best_fit needs one sequence_length in all stages; use concatenate"


def _training(schedule: Schedule) -> Iterator[Row]:
    rate, launch, optimizer = schedule.learning_rate, schedule.launch, schedule.optimizer
    yield "learning_rate.final", rate.final > rate.peak, f"must be {rate.peak} or less, learning_rate.peak"
    is_whole = launch.kernels == "compiled" and launch.zero_stage == 3
    yield "launch.kernels", is_whole, "needs launch.zero_stage 1 or 2; ZeRO-3 has no whole weights to compile with"
    per_stage = isinstance(launch.nodes, list) and len(launch.nodes) != len(schedule.stages)
    yield "launch.nodes", per_stage, f"must have one entry per stage, {len(schedule.stages)}"
    with_muon = "with optimizer.name = 'muon'"
    if optimizer.name == "muon":
        clips = f"must be 0 {with_muon}; DeepSpeed would scale down the orthogonalised updates instead of the gradients"
        yield "optimizer.gradient_clipping", optimizer.gradient_clipping > 0, clips
        on_devices = f"must be 'none' {with_muon}, whose momentum stays on the devices"
        yield "launch.offload", launch.offload != "none", on_devices
        is_rounded = launch.zero_stage == 2 and schedule.training.precision != "fp32"
        why = "because DeepSpeed would round the momentum to bf16; use 1 or 3"
        yield "launch.zero_stage", is_rounded, f"needs training.precision = 'fp32' {with_muon}, {why}"


def _growth(schedule: Schedule) -> Iterator[Row]:
    growth, rate, ends_early = schedule.growth, schedule.learning_rate, schedule.growth.when == "slope"
    if growth.preset != "custom" and (departures := growth.departures(growth.preset)):
        wanted = ", ".join(f"{key} = {value!r}" for key, value in departures.items())
        yield "growth.preset", True, f"sets {wanted}; drop your values (override: ~growth.KEY), or set preset to custom"
        return
    yield "growth.slope", ends_early and growth.slope is None, "is missing; growth.when = 'slope' needs it"
    undecayed = (rate.shape, rate.span) == ("wsd", "ladder")
    yield "growth.when", ends_early and not undecayed, "needs learning_rate.shape wsd and learning_rate.span ladder"
    if schedule.model.family == "tokenformer":
        reason = invalid_combination(growth.init, growth.tau, growth.copy_noise)
        yield "growth", reason, reason or ""


def _controls(schedule: Schedule) -> Iterator[Row]:
    kinds = [control.kind for control in schedule.controls]
    yield "name", kinds and schedule.name and not RUN_NAME.fullmatch(schedule.name), f"must be {NAME_ALLOWED}"
    for index, control in enumerate(schedule.controls):
        here, kind, depths = f"controls.{index}", control.kind, {*control.depths}
        for of_kind, is_impossible, needed in _needs_of_controls(schedule):
            yield f"{here}.kind", kind == of_kind and is_impossible, f"needs {needed}"
        yield f"{here}.kind", kind in kinds[:index], "is already in the list; give that entry all the budgets"
        for key, digits in (("budgets", 6), ("peaks", 3), ("depths", 4)):
            values = [f"{value:.{digits}g}" for value in getattr(control, key)]
            twice = next((value for value in values if values.count(value) > 1), "")
            yield f"{here}.{key}", twice, f"lists {twice} twice ({digits} digits count); each may occur once"
        grows = kind in ("single-jump", "official-growth") and control.peaks != [1.0]
        yield f"{here}.peaks", grows, f"is for controls that do not grow; {kind} has the ladder's rate, leave it out"
        yield f"{here}.peaks", 1.0 not in control.peaks, "must list 1, the ladder's own peak, or tuning could weaken it"
        yield f"{here}.depths", depths and kind != "best-scratch", "is for best-scratch; leave it out"
        own = num_layers(schedule, len(schedule.stages) - 1)
        yield f"{here}.depths", own in depths, f"lists {own}, which is trained anyway; leave it out"
        taken = {of_depth(depth) for depth in depths} & {stage.name for stage in schedule.stages}
        yield f"{here}.depths", taken, f"makes a control {min(taken, default='')}, like a stage; rename that stage"


def _needs_of_controls(schedule: Schedule) -> Iterator[Row]:
    """The kind of a control, whether the ladder lacks what it needs, and what that is."""
    is_tokenformer, models = schedule.model.family == "tokenformer", list(stage_models(schedule))
    uneven = any(isinstance(size, list) for each in models for size in model_shape(each.final).values())
    for kind in ("tokenformer-scratch", "best-scratch", "scratch-of-each-size", "single-jump"):
        yield kind, uneven, "layers of equal size; this ladder grows only some layers"
    yield "tokenformer-scratch", not is_tokenformer, "a tokenformer; the schedule has none"
    yield "decoder-scratch", not models[-1].final.num_layers, "a ladder that ends with layers"
    several = sum(each.is_grown for each in models[1:]) > 1
    yield "ungrown", schedule.start is None, "a start checkpoint; best-scratch trains the first size from scratch"
    yield "single-jump", not several, "three stages or more, with two growths or more between them"
    each_size, rate = "scratch-of-each-size", schedule.learning_rate
    yield each_size, rate.shape == "wsd" and not rate.decay, "learning_rate.decay above 0, so that controls decay"
    too_few = len(finished_models(schedule, plan_stages(schedule))) < 2
    yield each_size, too_few, "a ladder with finished models of two sizes or more; set releases to all"
    tokens_alone = any(each.is_grown for each in models) and not any(each.growth.new_layers for each in models)
    impossible = not (is_tokenformer and tokens_alone and schedule.growth.departures("official"))
    yield "official-growth", impossible, "a tokenformer that grows, by tokens alone and by another policy"


def _models(schedule: Schedule) -> Iterator[Row]:
    """The first stage whose model cannot be built."""
    models, before = stage_models(schedule), schedule.base.model if schedule.base else None
    for index, stage in enumerate(schedule.stages):
        try:
            before = next(models).final
        except UserError as error:
            growth = growth_of(schedule, index, before) if before else Growth()
            added = {"num_heads": growth.heads, "num_layers": growth.new_layers}
            added |= {key: min(getattr(growth, key), default=0) for key in ("attention_tokens", "ffn_tokens")}
            for key, number in added.items():
                least = (getattr(stage, key) or 0) - number
                yield f"stages.{index}.{key}", number < 0, f"must be {least} or more; a growth only adds"
            yield f"stages.{index}", min(added.values()) >= 0, str(error)
            return


def _growths(schedule: Schedule) -> Iterator[Row]:
    growth, models = schedule.growth, list(stage_models(schedule))
    reads = [(schedule.batch_of(index), schedule.weights_of(index)) for index in range(len(models))]
    for index in range(1, len(models)):
        repeats = not models[index].is_grown and reads[index] == reads[index - 1]
        allowed = "has the size, batch, context and mixture of the stage before; merge them, or change one"
        yield f"stages.{index}", repeats, allowed
    if schedule.model.family == "tokenformer":
        is_official = growth.preset == "official" and any(each.growth.new_layers for each in models)
        yield "growth.preset", is_official, "the official code cannot add layers; use custom"
    elif any(each.is_grown for each in models):
        widens = any(each.growth.widen > 1 for each in models)
        noisy = growth.copy_noise and not widens
        yield "growth.copy_noise", noisy, "is for a decoder that grows in hidden_size; leave it out"
        named = growth.preset in ("official", "paper-appendix")
        yield "growth.preset", named, "is for a tokenformer; a decoder has no tau and no choice of init"
        for path in () if named or growth.copy_noise else ("growth.init", "growth.tau", "growth.routing"):
            yield path, _is_set(schedule, path), "is for a tokenformer; what is new in a decoder writes zeros"
        of_old = ("growth.old_tokens", "growth.lr_scale", "growth.weight_decay", "growth.rewarmup.of")
        for path in of_old if widens else ():
            yield path, _is_set(schedule, path), "tells old from new; a decoder that grows in width has no old tokens"


def _ladder_budget(schedule: Schedule) -> Iterator[Row]:
    """A budget of the whole ladder in which a stage gets less than a step."""
    budget = schedule.training.ladder_flops or schedule.training.ladder_tokens
    if budget is None:
        return
    key = f"training.ladder_{'flops' if schedule.training.ladder_flops else 'tokens'}"
    costs, ends = step_costs(schedule), [0.0, *(stage.until or 1.0 for stage in schedule.stages)]
    fewest = max(cost / (end - before) for cost, (before, end) in zip(costs, pairwise(ends), strict=True))
    is_short = budget < fewest * (1 - 1e-9)  # more than the rounding of shares such as 1 - 0.8
    yield key, is_short, f"must be {scientific(fewest * 1.01)} or more, so that every stage has a step"


def _steps(schedule: Schedule) -> Iterator[Row]:
    can_ramp = schedule.model.family == "tokenformer" and schedule.growth.tau in ("ramp", "anneal")
    models, all_steps = stage_models(schedule), stage_steps(schedule)
    for index, (stage, each, steps) in enumerate(zip(schedule.stages, models, all_steps, strict=True)):
        if stage.ramp_steps is not None:
            adds_tokens = each.is_grown and (not index or each.growth.adds_tokens)
            here, allowed = f"stages.{index}.ramp_steps", "is for a stage that adds parameter tokens with growth.tau"
            yield here, not adds_tokens or not can_ramp, f"{allowed} ramp or anneal; leave it out"
            yield here, stage.ramp_steps >= steps, f"must be less than the stage's {steps} steps"
    is_cut = schedule.growth.when == "slope" and round(schedule.learning_rate.decay * sum(all_steps)) > all_steps[-1]
    yield "learning_rate.decay", is_cut, "must fit into the last stage with growth.when = 'slope'; lower it"


def _releases(schedule: Schedule) -> Iterator[Row]:
    """Releases of stages that are finished already or cannot branch off."""
    for plan in plan_stages(schedule):
        asked = bool(schedule.stages[plan.index].release)
        here = f"stages.{plan.index}.release" if asked else "releases"
        decayed, reason = plan.has_decayed, plan.reason_not_to_release
        yield here, asked and decayed, f"stage {plan.name} ends finished, its learning rate has decayed; leave this out"
        cannot = schedule.release_of(plan.index) and not decayed and reason
        yield here, cannot, f"stage {plan.name} cannot be released: {reason}"
        if cannot and not asked:
            return  # the reason is the same for every stage that `releases` asks for


_TABLES: tuple[tuple[Callable[[Schedule], Iterator[Row]], ...], ...] = (
    (_start,),
    (_choices, _texts, _images, _model, _stages, _budgets, _batches, _training, _growth),
    (_models,),
    (_growths, _controls, _ladder_budget),
    (_steps, _releases),
)
"""A table may compute with values that those before it have accepted."""
