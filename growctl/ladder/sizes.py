"""Computes the model of each stage, with the growth of every layer."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from growctl.schedule.blocks import Schedule
from model.config_growth import anneal_config, grow_config, ramp_config
from model.decoder_config import DecoderConfig, decoder_config
from model.policy import TauPolicy
from model.shapes import ModelConfig
from model.tokenformer_config import TokenformerConfig, tokenformer_config


class Growth(NamedTuple):
    """What the growth before a stage adds."""

    attention_tokens: tuple[int, ...] = ()
    """Parameter tokens that each layer of the model before gains in each of Q, K, V and O."""

    ffn_tokens: tuple[int, ...] = ()
    """The same for the FFN, or its units in a decoder."""

    heads: int = 0
    """Query heads that each layer of a decoder gains."""

    new_layers: int = 0
    layer_tokens: tuple[int, int] | None = None
    """(attention tokens, FFN tokens) of each new layer; None: as many as the layer that it follows or copies has after
    the growth."""

    widen: int = 1
    """The factor on a decoder's width, heads and FFN units before anything is added."""

    @property
    def adds_tokens(self) -> bool:
        """Whether any layer gains tokens."""
        return any((*self.attention_tokens, *self.ffn_tokens))

    @property
    def is_any(self) -> bool:
        """Whether it adds anything."""
        return self.adds_tokens or self.new_layers != 0 or self.heads != 0 or self.widen != 1


def num_layers(schedule: Schedule, index: int) -> int:
    """The depth of stage `index`; that of the start checkpoint or of `model` for -1."""
    given = [stage.num_layers for stage in schedule.stages[: index + 1] if stage.num_layers is not None]
    return given[-1] if given else schedule.model.num_layers


def tokens_so_far(schedule: Schedule, index: int) -> tuple[int, int]:
    """The last (attention tokens, FFN tokens) that the stages up to `index`, or the model, set; 0 where none does."""
    stages = schedule.stages[: index + 1]
    attention = [stage.attention_tokens for stage in stages if stage.attention_tokens]
    ffn = [stage.ffn_tokens for stage in stages if stage.ffn_tokens]
    return (attention or [0])[-1], (ffn or [schedule.model.ffn_tokens or 0])[-1]


def growth_of(schedule: Schedule, index: int, before: ModelConfig) -> Growth:
    """What stage `index` adds to the model `before` it. What the stage leaves out stays as it was."""
    stage = schedule.stages[index]
    new_layers = num_layers(schedule, index) - before.num_layers
    if isinstance(before, DecoderConfig):
        widen = (stage.hidden_size or before.hidden_size) // before.hidden_size
        units, heads = widen * before.ffn_tokens, widen * before.num_heads
        return Growth(
            ffn_tokens=((stage.ffn_tokens or units) - units,) * before.num_layers,
            heads=(stage.num_heads or heads) - heads,
            new_layers=new_layers,
            widen=widen,
        )
    growing = range(before.num_layers) if stage.layers is None else stage.layers

    def added(wanted: int | None, sizes: list[int]) -> tuple[int, ...]:
        return tuple(wanted - size if wanted and layer in growing else 0 for layer, size in enumerate(sizes))

    return Growth(
        attention_tokens=added(stage.attention_tokens, [block.query.num_tokens for block in before.blocks]),
        ffn_tokens=added(stage.ffn_tokens, [block.ffn.num_tokens for block in before.blocks]),
        new_layers=new_layers,
        layer_tokens=tokens_so_far(schedule, index) if new_layers and not before.blocks else None,
    )


class StageModels(NamedTuple):
    """The models at both ends of a stage, and how the first one grew from the stage before."""

    initial: ModelConfig
    """At the stage's first step, right after the growth."""

    final: ModelConfig
    """At its end, fully ramped in or annealed."""

    is_grown: bool
    """Whether a growth comes before the stage. Without one, it trains the model that it starts from on."""

    tau: TauPolicy | None
    """What happens to tau in the stage; None if its newest tokens have been trained before. A start checkpoint that
    was only expanded keeps the policy of its own growth."""

    growth: Growth = Growth()
    """What the growth adds; empty for a new model."""


def stage_models(schedule: Schedule) -> Iterator[StageModels]:
    """The models of every stage, in order. Raises UserError at the first stage that cannot grow from the one before."""
    base = schedule.base
    before: ModelConfig | None = base.model if base else None
    for index in range(len(schedule.stages)):
        growth, grows = Growth(), False
        if before is None:
            initial = _first_model(schedule)
        else:
            growth = growth_of(schedule, index, before)
            grows = growth.is_any
            initial = grow_config(before, **growth._asdict(), policy=schedule.growth.policy()) if grows else before
        untrained = base.expanded_with if base and index == 0 else None
        tau = schedule.growth.tau if grows else untrained
        before = initial
        if isinstance(initial, TokenformerConfig):
            ramped = ramp_config(initial, 1.0)
            before = anneal_config(ramped, 1.0) if tau == "anneal" else ramped
        elif tau:
            tau = "frozen"  # a decoder has none that could move
        yield StageModels(initial, before, grows, tau, growth)


def _first_model(schedule: Schedule) -> ModelConfig:
    block = schedule.model
    attention_tokens, ffn_tokens = tokens_so_far(schedule, 0)
    same: dict[str, Any] = {
        "num_layers": num_layers(schedule, 0),
        "ffn_tokens": ffn_tokens or 1,
        "vocab_size": schedule.vocab_size,
    }
    if block.family == "decoder":
        return decoder_config(**same, **block.shared())
    same |= {"attention_tokens": attention_tokens or 1}  # a model without layers may leave them out
    return tokenformer_config(**same, score_function=block.score_function, routing=block.routing, **block.shared())


def attending(schedule: Schedule, model: ModelConfig, end_of_text_id: int = 0) -> ModelConfig:
    """`model`, which attends within documents if the schedule says so.

    The tokenizer's end of text is known from the dataset only. For sizes and costs, any id does.
    """
    return model.model_copy(update={"document_end_id": end_of_text_id if schedule.data.document_mask else None})
