"""Checks the sizes of the stages: the depth of each, and the parameter tokens of its layers."""

from collections.abc import Iterator

from growctl.ladder.budgets import stage_weights
from growctl.ladder.sizes import growth_before, is_grown, num_layers, tokens_so_far
from growctl.schedule.batches import stage_batch
from growctl.schedule.blocks import Schedule
from growctl.schedule.errors import shown


def check_sizes(schedule: Schedule) -> Iterator[str]:
    """One line per size that does not fit."""
    if schedule.model.family == "transformer":
        yield from [*_layers_of_a_transformer(schedule)] or _check_repetitions(schedule)
        return
    problems = [*_check_depths(schedule), *_check_missing_tokens(schedule), *_check_chosen_layers(schedule)]
    yield from problems or [*_check_growths(schedule), *_check_repetitions(schedule)]


def _layers_of_a_transformer(schedule: Schedule) -> Iterator[str]:
    given = {"model": schedule.model.num_layers} | {f"stages.{i}": s.num_layers for i, s in enumerate(schedule.stages)}
    for here, depth in given.items():
        if depth == 0:
            yield f"{here}.num_layers = 0: must be 1 or more for a transformer; only a tokenformer can have no layers"


def _check_depths(schedule: Schedule) -> Iterator[str]:
    for index in range(0 if schedule.base else 1, len(schedule.stages)):
        here, depth = f"stages.{index}", schedule.stages[index].num_layers
        if depth is not None and depth < (before := num_layers(schedule, index - 1)):
            yield f"{here}.num_layers = {depth}: is less than the {before} of {_whose(index)}; a growth only adds"


def _check_missing_tokens(schedule: Schedule) -> Iterator[str]:
    """Reports the tokens that the first layers of a ladder lack."""
    depths = [num_layers(schedule, index) for index in range(-1 if schedule.base else 0, len(schedule.stages))]
    if not any(depths) or (schedule.base and depths[0]):
        return
    index = next(index for index in range(len(schedule.stages)) if num_layers(schedule, index))
    for field, tokens in zip(("attention_tokens", "ffn_tokens"), tokens_so_far(schedule, index), strict=True):
        if not tokens:
            yield (
                f"stages.{index}.{field}: is missing; the first stage of a tokenformer with layers needs a number of "
                "parameter tokens"
            )


def _check_chosen_layers(schedule: Schedule) -> Iterator[str]:
    """Reports `layers` that cannot grow."""
    for index, stage in enumerate(schedule.stages):
        if stage.layers is None:
            continue
        depth = num_layers(schedule, index - 1)
        wrong = not stage.layers or max(stage.layers) >= depth or len(set(stage.layers)) < len(stage.layers)
        if index == 0 and schedule.start is None:
            why = "is for a growth; the first stage always has all layers"
        elif stage.num_layers is not None:
            why = "goes without num_layers, which grows all layers; grow some of them in a stage of its own"
        elif wrong:
            why = f"must be one or more different layers, from 0 to {depth - 1}" if depth else "the model has no layers"
        elif stage.attention_tokens is None and stage.ffn_tokens is None:
            why = "says which layers grow, but not to what; add attention_tokens or ffn_tokens"
        else:
            continue
        yield f"stages.{index}.layers = {shown(stage.layers)}: {why}"


def _check_growths(schedule: Schedule) -> Iterator[str]:
    """Reports stages that are smaller than the one before."""
    for index in range(0 if schedule.start else 1, len(schedule.stages)):
        stage, growth, here = schedule.stages[index], growth_before(schedule, index), f"stages.{index}"
        for field in ("attention_tokens", "ffn_tokens"):
            if (fewest := min(getattr(growth, field), default=0)) < 0:
                value = getattr(stage, field)
                before = value - fewest
                yield f"{here}.{field} = {value}: is less than the {before} of {_whose(index)}; a growth only adds"
        if schedule.growth.depth == "copy-stack" and growth.new_layers:
            yield from _check_copies(here, num_layers(schedule, index), len(growth.attention_tokens), _whose(index))


def _check_repetitions(schedule: Schedule) -> Iterator[str]:
    """Reports stages in which nothing differs from the one before: neither a size nor what a step reads."""
    reads = [(stage_batch(schedule, index), stage_weights(schedule, index)) for index in range(len(schedule.stages))]
    for index in range(1, len(reads)):
        if not is_grown(schedule, index) and reads[index] == reads[index - 1]:
            yield (
                f"stages.{index}: has the size, batch, context and mixture of the stage before; change one of them, or "
                "merge the two stages"
            )


def _check_copies(here: str, depth: int, old_layers: int, whose: str) -> Iterator[str]:
    """Reports a depth that whole copies of the old layers do not make."""
    if not old_layers:
        yield f"{here}.num_layers = {depth}: growth.depth = 'copy-stack' needs layers to copy; {whose} has none"
    elif depth % old_layers:
        near = depth - depth % old_layers
        allowed = f"{near} or {near + old_layers}" if near > old_layers else str(near + old_layers)
        yield (
            f"{here}.num_layers = {depth}: must be a multiple of the {old_layers} of {whose} with growth.depth = "
            f"'copy-stack'; use {allowed}"
        )


def _whose(index: int) -> str:
    return "the stage before" if index else "the start checkpoint"
