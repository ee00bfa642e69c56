"""Computes the model of each stage, with the growth of every layer."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from growctl.schema.blocks import Schedule
from model.config import TokenformerConfig, TransformerConfig, tokenformer_config
from model.errors import UserError
from model.policy import TauPolicy, anneal_config, grow_config, ramp_config
from model.transformer_sizes import check_transformer_growth


def layer_tokens(schedule: Schedule, index: int) -> list[tuple[int, int]]:
    """(attention tokens, FFN tokens) of each layer in stage `index` of a tokenformer; -1: of the start checkpoint."""
    tokens = [(0, 0)] * schedule.model.num_layers
    if schedule.base and isinstance(schedule.base.model, TokenformerConfig):
        tokens = [(block.query.num_tokens, block.ffn.num_tokens) for block in schedule.base.model.blocks]
    for stage in schedule.stages[: index + 1]:
        for layer in range(len(tokens)) if stage.layers is None else stage.layers:
            tokens[layer] = stage.attention_tokens or 0, stage.ffn_tokens or 0
    return tokens


def added_tokens(schedule: Schedule, index: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Tokens per layer that the growth before stage `index` adds: (to each of Q, K, V and O, to the FFN).

    All 0 for a first stage that does not grow a checkpoint; empty for a transformer, which has no parameter tokens.
    """
    if schedule.model.family == "transformer":
        return (), ()
    after = layer_tokens(schedule, index)
    before = layer_tokens(schedule, index - 1) if index or schedule.base else after
    attention, ffn = zip(*((a - b, f - g) for (a, f), (b, g) in zip(after, before, strict=True)), strict=True)
    return attention, ffn


def is_grown(schedule: Schedule, index: int) -> bool:
    """Whether a growth comes before stage `index`."""
    return index > 0 or any(map(any, added_tokens(schedule, index)))


def tau_after_growth(schedule: Schedule, index: int) -> TauPolicy | None:
    """What happens to tau in stage `index`; None if its newest tokens have been trained before.

    A start checkpoint that was only expanded keeps the policy of its own growth.
    """
    if is_grown(schedule, index):
        return schedule.growth.tau
    return schedule.base.expanded_with if schedule.base else None


class StageModels(NamedTuple):
    """The models at both ends of a stage."""

    initial: TokenformerConfig | TransformerConfig
    """At the stage's first step, right after the growth."""

    final: TokenformerConfig | TransformerConfig
    """At its end, fully ramped in or annealed."""


def stage_models(schedule: Schedule) -> Iterator[StageModels]:
    """The models of every stage, in order. Raises UserError at the first stage that cannot grow from the one before."""
    if schedule.model.family == "transformer":
        for index in range(len(schedule.stages)):
            model = _transformer(schedule, index)
            yield StageModels(initial=model, final=model)
        return
    before = schedule.base.model if schedule.base else None
    for index in range(len(schedule.stages)):
        initial = _grown_tokenformer(schedule, index, before)
        ramped = ramp_config(initial, 1.0)
        before = anneal_config(ramped, 1.0) if tau_after_growth(schedule, index) == "anneal" else ramped
        yield StageModels(initial, final=before)


def stage_model(schedule: Schedule, index: int) -> TokenformerConfig | TransformerConfig:
    """The model at the end of stage `index`. To visit every stage, use `stage_models`: each grows from the one before.

    Raises UserError if the stage or one before it cannot grow.
    """
    return next(islice(stage_models(schedule), index, None)).final


def _grown_tokenformer(
    schedule: Schedule, index: int, before: TokenformerConfig | TransformerConfig | None
) -> TokenformerConfig:
    """The model of stage `index` at its first step, grown from `before`; None: drawn at random."""
    if before is None:
        return _new_tokenformer(schedule)
    assert isinstance(before, TokenformerConfig)
    if not is_grown(schedule, index):
        return before
    attention, ffn = added_tokens(schedule, index)
    return grow_config(before, attention_tokens=attention, ffn_tokens=ffn, policy=schedule.growth.policy())


def attending(
    schedule: Schedule, model: TokenformerConfig | TransformerConfig, end_of_text_id: int = 0
) -> TokenformerConfig | TransformerConfig:
    """`model`, which attends within documents if the schedule says so.

    The tokenizer's end of text is known from the dataset only. For sizes and costs, any id does.
    """
    return model.model_copy(update={"document_end_id": end_of_text_id if schedule.data.document_mask else None})


def _new_tokenformer(schedule: Schedule) -> TokenformerConfig:
    stage = schedule.stages[0]
    assert stage.attention_tokens is not None
    assert stage.ffn_tokens is not None
    return tokenformer_config(
        num_layers=schedule.model.num_layers,
        attention_tokens=stage.attention_tokens,
        ffn_tokens=stage.ffn_tokens,
        score_function=schedule.model.score_function,
        hidden_size=schedule.model.hidden_size,
        num_heads=schedule.model.num_heads,
        **_shape(schedule),
    )


def _transformer(schedule: Schedule, index: int) -> TransformerConfig:
    model = schedule.model
    num_layers, width, ffn_size = model.num_layers, model.hidden_size, model.ffn_size or 4 * model.hidden_size
    for stage in schedule.stages[: index + 1]:
        ffn_size = stage.ffn_size or max(1, ffn_size * (stage.hidden_size or width) // width)
        num_layers, width = stage.num_layers or num_layers, stage.hidden_size or width
    head_width = model.hidden_size // model.num_heads
    if width % head_width:
        raise UserError(f"hidden_size {width} must be a multiple of the heads' width, {head_width}")
    config = TransformerConfig(
        num_layers=num_layers, hidden_size=width, num_heads=width // head_width, ffn_size=ffn_size, **_shape(schedule)
    )
    if index and schedule.growth.operator:
        check_transformer_growth(_transformer(schedule, index - 1), config, schedule.growth.operator)
    return config


def _shape(schedule: Schedule) -> dict[str, Any]:
    block = schedule.model
    return {
        "vocab_size": schedule.vocab_size,
        "rotary_fraction": block.rotary_fraction,
        "rotary_base": block.rotary_base,
    }
