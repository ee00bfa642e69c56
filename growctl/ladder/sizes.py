"""Computes the model of each stage, with the growth of every layer."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from growctl.schedule.blocks import Schedule, StageBlock
from model.config import TokenformerConfig, TransformerConfig, tokenformer_config
from model.depth import Depth, placed_after
from model.errors import UserError
from model.policy import TauPolicy, anneal_config, grow_config, ramp_config
from model.transformer_sizes import check_transformer_growth


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


def layer_tokens(schedule: Schedule, index: int) -> list[tuple[int, int]]:
    """(attention tokens, FFN tokens) of each layer in stage `index` of a tokenformer; -1: of the start checkpoint.

    Tokens that the schedule lacks count as 0.
    """
    base = schedule.base.model if schedule.base else None
    if isinstance(base, TokenformerConfig):
        tokens, stages = [(block.query.num_tokens, block.ffn.num_tokens) for block in base.blocks], range(index + 1)
    else:
        tokens, stages = [tokens_so_far(schedule, 0)] * num_layers(schedule, 0), range(1, index + 1)
    for i in stages:
        grown = _grown_layers(schedule.stages[i], tokens)
        new_layers = max(0, num_layers(schedule, i) - len(tokens))
        tokens = _with_new_layers(grown, new_layers, schedule.growth.depth, tokens_so_far(schedule, i))
    return tokens


def _with_new_layers(
    tokens: list[tuple[int, int]], new_layers: int, depth: Depth, if_none: tuple[int, int]
) -> list[tuple[int, int]]:
    """The tokens of old and new layers in forward order; new ones have `if_none` in a model without layers."""
    if not tokens:
        return [if_none] * new_layers
    follows = placed_after(depth, len(tokens), new_layers)
    like = [i % len(tokens) for i in range(new_layers)] if depth == "copy-stack" else follows
    new = [(place, tokens[layer]) for place, layer in zip(follows, like, strict=True)]
    return [size for _, size in sorted([*enumerate(tokens), *new], key=lambda placed: placed[0])]


def _grown_layers(stage: StageBlock, tokens: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The tokens of the layers that had `tokens` before `stage`. What a stage leaves out stays as it was."""
    growing = range(len(tokens)) if stage.layers is None else stage.layers
    return [
        (stage.attention_tokens or attention, stage.ffn_tokens or ffn) if layer in growing else (attention, ffn)
        for layer, (attention, ffn) in enumerate(tokens)
    ]


def tokens_so_far(schedule: Schedule, index: int) -> tuple[int, int]:
    """The last (attention tokens, FFN tokens) that the stages up to `index` set; 0 where they set none."""
    stages = schedule.stages[: index + 1]
    attention = [stage.attention_tokens for stage in stages if stage.attention_tokens]
    ffn = [stage.ffn_tokens for stage in stages if stage.ffn_tokens]
    return (attention or [0])[-1], (ffn or [0])[-1]


def growth_before(schedule: Schedule, index: int) -> Growth:
    """What the growth before stage `index` adds: nothing for a first stage that does not grow a checkpoint."""
    if schedule.model.family == "transformer":
        return Growth()
    has_before = index > 0 or schedule.base is not None
    before = layer_tokens(schedule, index - 1 if has_before else 0)
    after = _grown_layers(schedule.stages[index], before) if has_before else before
    added = [(a - b, f - g) for (a, f), (b, g) in zip(after, before, strict=True)]
    new_layers = max(0, num_layers(schedule, index) - len(before))
    return Growth(
        attention_tokens=tuple(attention for attention, _ in added),
        ffn_tokens=tuple(ffn for _, ffn in added),
        new_layers=new_layers,
        layer_tokens=tokens_so_far(schedule, index) if new_layers > 0 and not before else None,
    )


def is_grown(schedule: Schedule, index: int) -> bool:
    """Whether a growth comes before stage `index`. Without one, it trains the model of the stage before on."""
    if schedule.model.family == "transformer":
        return index > 0 and _transformer_sizes(schedule, index) != _transformer_sizes(schedule, index - 1)
    return growth_before(schedule, index).is_any


def tau_after_growth(schedule: Schedule, index: int) -> TauPolicy | None:
    """What happens to tau in stage `index`; None if its newest tokens have been trained before.

    A start checkpoint that was only expanded keeps the policy of its own growth.
    """
    if is_grown(schedule, index):
        return schedule.growth.tau
    return schedule.base.expanded_with if schedule.base and index == 0 else None


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
    block, before = schedule.model, schedule.base.model if schedule.base else None
    for index in range(len(schedule.stages)):
        if before is None:
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
        else:
            assert isinstance(before, TokenformerConfig)
            growth, grows = growth_before(schedule, index)._asdict(), is_grown(schedule, index)
            initial = grow_config(before, **growth, policy=schedule.growth.policy()) if grows else before
        ramped = ramp_config(initial, 1.0)
        before = anneal_config(ramped, 1.0) if tau_after_growth(schedule, index) == "anneal" else ramped
        yield StageModels(initial, final=before)


def attending(
    schedule: Schedule, model: TokenformerConfig | TransformerConfig, end_of_text_id: int = 0
) -> TokenformerConfig | TransformerConfig:
    """`model`, which attends within documents if the schedule says so.

    The tokenizer's end of text is known from the dataset only. For sizes and costs, any id does.
    """
    return model.model_copy(update={"document_end_id": end_of_text_id if schedule.data.document_mask else None})


def _transformer_sizes(schedule: Schedule, index: int) -> tuple[int, int, int]:
    """(layers, width, FFN size) of a transformer in stage `index`."""
    model = schedule.model
    width, ffn_size = model.hidden_size, model.ffn_size or 4 * model.hidden_size
    for stage in schedule.stages[: index + 1]:
        ffn_size = stage.ffn_size or max(1, ffn_size * (stage.hidden_size or width) // width)
        width = stage.hidden_size or width
    return num_layers(schedule, index), width, ffn_size


def _transformer(schedule: Schedule, index: int) -> TransformerConfig:
    model = schedule.model
    depth, width, ffn_size = _transformer_sizes(schedule, index)
    head_width = model.hidden_size // model.num_heads
    if width % head_width:
        raise UserError(f"hidden_size {width} must be a multiple of the heads' width, {head_width}")
    config = TransformerConfig(
        num_layers=depth,
        hidden_size=width,
        num_heads=width // head_width,
        ffn_size=ffn_size,
        vocab_size=schedule.vocab_size,
        rotary_fraction=model.rotary_fraction,
        rotary_base=model.rotary_base,
    )
    if is_grown(schedule, index) and schedule.growth.operator:
        check_transformer_growth(_transformer(schedule, index - 1), config, schedule.growth.operator)
    return config
