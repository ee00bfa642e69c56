"""Computes the model of each stage, with the growth of every layer."""

from collections.abc import Iterator
from typing import NamedTuple

from growctl.schedule.blocks import Schedule
from model.config import TokenformerConfig, TransformerConfig, tokenformer_config
from model.depth import check_transformer_growth
from model.errors import UserError
from model.policy import TauPolicy, anneal_config, grow_config, ramp_config


class Growth(NamedTuple):
    """What the growth before a stage adds to a tokenformer; empty for a transformer."""

    attention_tokens: tuple[int, ...] = ()
    """Parameter tokens that each layer of the model before gains in each of Q, K, V and O."""

    ffn_tokens: tuple[int, ...] = ()
    """The same for the FFN."""

    new_layers: int = 0
    layer_tokens: tuple[int, int] | None = None
    """(attention tokens, FFN tokens) of each new layer; None: as many as the layer that it follows or copies has after
    the growth."""

    @property
    def adds_tokens(self) -> bool:
        """Whether any layer gains tokens."""
        return any((*self.attention_tokens, *self.ffn_tokens))

    @property
    def is_any(self) -> bool:
        """Whether it adds anything."""
        return self.adds_tokens or self.new_layers > 0


def num_layers(schedule: Schedule, index: int) -> int:
    """The depth of stage `index`; that of the start checkpoint or of `model` for -1."""
    given = [stage.num_layers for stage in schedule.stages[: index + 1] if stage.num_layers is not None]
    return given[-1] if given else schedule.model.num_layers


def tokens_so_far(schedule: Schedule, index: int) -> tuple[int, int]:
    """The last (attention tokens, FFN tokens) that the stages up to `index` set; 0 where they set none."""
    stages = schedule.stages[: index + 1]
    attention = [stage.attention_tokens for stage in stages if stage.attention_tokens]
    ffn = [stage.ffn_tokens for stage in stages if stage.ffn_tokens]
    return (attention or [0])[-1], (ffn or [0])[-1]


def growth_of(schedule: Schedule, index: int, before: TokenformerConfig) -> Growth:
    """What stage `index` adds to the model `before` it. What the stage leaves out stays as it was."""
    stage = schedule.stages[index]
    growing = range(before.num_layers) if stage.layers is None else stage.layers

    def added(wanted: int | None, sizes: list[int]) -> tuple[int, ...]:
        return tuple(wanted - size if wanted and layer in growing else 0 for layer, size in enumerate(sizes))

    new_layers = num_layers(schedule, index) - before.num_layers
    return Growth(
        attention_tokens=added(stage.attention_tokens, [block.query.num_tokens for block in before.blocks]),
        ffn_tokens=added(stage.ffn_tokens, [block.ffn.num_tokens for block in before.blocks]),
        new_layers=new_layers,
        layer_tokens=tokens_so_far(schedule, index) if new_layers and not before.blocks else None,
    )


class StageModels(NamedTuple):
    """The models at both ends of a stage, and how the first one grew from the stage before."""

    initial: TokenformerConfig | TransformerConfig
    """At the stage's first step, right after the growth."""

    final: TokenformerConfig | TransformerConfig
    """At its end, fully ramped in or annealed."""

    is_grown: bool
    """Whether a growth comes before the stage. Without one, it trains the model that it starts from on."""

    tau: TauPolicy | None
    """What happens to tau in the stage; None if its newest tokens have been trained before. A start checkpoint that
    was only expanded keeps the policy of its own growth."""

    growth: Growth = Growth()
    """What the growth adds; empty for a transformer and for a new model."""


def stage_models(schedule: Schedule) -> Iterator[StageModels]:
    """The models of every stage, in order. Raises UserError at the first stage that cannot grow from the one before."""
    base, block = schedule.base, schedule.model
    before: TokenformerConfig | TransformerConfig | None = base.model if base else None
    for index in range(len(schedule.stages)):
        growth, grows = Growth(), False
        if block.family == "transformer":
            transformer = _transformer(schedule, index)
            initial: TokenformerConfig | TransformerConfig = transformer
            grows = before not in (None, transformer)
            if isinstance(before, TransformerConfig):
                check_transformer_growth(before, transformer, schedule.growth.depth)
        elif isinstance(before, TokenformerConfig):
            growth = growth_of(schedule, index, before)
            grows = growth.is_any
            initial = grow_config(before, **growth._asdict(), policy=schedule.growth.policy()) if grows else before
        else:
            attention_tokens, ffn_tokens = tokens_so_far(schedule, 0)
            initial = tokenformer_config(
                num_layers=num_layers(schedule, 0),
                attention_tokens=attention_tokens or 1,  # a model without layers may leave them out
                ffn_tokens=ffn_tokens or 1,
                score_function=block.score_function,
                hidden_size=block.hidden_size,
                num_heads=block.num_heads,
                vocab_size=schedule.vocab_size,
                rotary_fraction=block.rotary_fraction,
                rotary_base=block.rotary_base,
            )
        untrained = base.expanded_with if base and index == 0 else None
        tau = schedule.growth.tau if grows else untrained
        before = initial
        if isinstance(initial, TokenformerConfig):
            ramped = ramp_config(initial, 1.0)
            before = anneal_config(ramped, 1.0) if tau == "anneal" else ramped
        yield StageModels(initial, before, grows, tau, growth)


def attending(
    schedule: Schedule, model: TokenformerConfig | TransformerConfig, end_of_text_id: int = 0
) -> TokenformerConfig | TransformerConfig:
    """`model`, which attends within documents if the schedule says so.

    The tokenizer's end of text is known from the dataset only. For sizes and costs, any id does.
    """
    return model.model_copy(update={"document_end_id": end_of_text_id if schedule.data.document_mask else None})


def _transformer(schedule: Schedule, index: int) -> TransformerConfig:
    model = schedule.model
    width, ffn_size = model.hidden_size, model.ffn_size or 4 * model.hidden_size
    for stage in schedule.stages[: index + 1]:
        ffn_size = stage.ffn_size or max(1, ffn_size * (stage.hidden_size or width) // width)
        width = stage.hidden_size or width
    head_width = model.hidden_size // model.num_heads
    if width % head_width:
        raise UserError(f"hidden_size {width} must be a multiple of the heads' width, {head_width}")
    return TransformerConfig(
        num_layers=num_layers(schedule, index),
        hidden_size=width,
        num_heads=width // head_width,
        ffn_size=ffn_size,
        vocab_size=schedule.vocab_size,
        rotary_fraction=model.rotary_fraction,
        rotary_base=model.rotary_base,
    )
