"""Growth of decoders as configurations: what each adds, and which sizes it can reach.

Imports no torch.

A growth appends units to each FFN, heads to each attention, and layers, as one generation; what they write into the
residual stream is zero at first, so the function stays. Widening repeats the model instead (model/widening.py).
"""

from model.decoder_config import DecoderBlockConfig, DecoderConfig, Rows
from model.depth import COPYING, COPYING_JUMPS, Depth, with_blocks, wrong_number_of_copies
from model.errors import UserError


def grown_decoder(
    config: DecoderConfig,
    *,
    ffn_tokens: int = 0,
    heads: int = 0,
    new_layers: int = 0,
    depth: Depth = "append",
    allow_jump: bool = False,
) -> DecoderConfig:
    """`config` with one more generation: more FFN units and query heads in each layer, and more layers.

    New layers are as large as the old ones are then. Raises UserError if a number is negative or all are zero, if heads
    are not whole groups, if there are no layers to grow, if `depth` cannot copy so many, or if it copies layers, which
    changes the function, without `allow_jump`.
    """
    added = {"ffn_tokens": ffn_tokens, "heads": heads, "new_layers": new_layers}
    if min(added.values()) < 0 or not any(added.values()):
        raise UserError(f"growth adds {_listed(added)}; each must be 0 or more, and one of them above 0")
    if heads % config.group_size:
        raise UserError(
            f"growth adds {heads} heads; {config.group_size} query heads share one of keys and values, so it must add "
            f"a multiple of {config.group_size}"
        )
    if not config.num_layers:
        raise UserError("a decoder without layers cannot grow")
    if wrong := wrong_number_of_copies(depth, config.num_layers, new_layers) if new_layers else None:
        raise UserError(wrong)
    if depth in COPYING and new_layers and not allow_jump:
        raise UserError(f"depth {depth!r} {COPYING_JUMPS}")
    if depth in COPYING and new_layers and (ffn_tokens or heads):
        raise UserError(f"depth {depth!r} cannot add to layers in the same growth; add to them in another growth")
    number, groups = config.newest_generation + 1, heads // config.group_size

    def more(rows: tuple[Rows, ...], count: int) -> tuple[Rows, ...]:
        return (*rows, Rows(number=number, count=count)) if count else rows

    blocks = tuple(
        DecoderBlockConfig(heads=more(block.heads, groups), ffn=more(block.ffn, ffn_tokens)) for block in config.blocks
    )
    sizes = {"num_heads": config.num_heads + heads, "num_kv_heads": config.num_kv_heads + groups}
    sizes["head_width"] = config.head_width  # no longer D / H
    config = config.model_copy(update=sizes | {"blocks": blocks})
    if not new_layers:
        return config
    whole = DecoderBlockConfig(
        heads=(Rows(number=number, count=config.num_kv_heads),), ffn=(Rows(number=number, count=config.ffn_tokens),)
    )
    return config.model_copy(update=with_blocks(config, (whole,) * new_layers, depth))


def shrunk_decoder(config: DecoderConfig, newest: int) -> DecoderConfig:
    """`config` without what growths after number `newest` added."""

    def old(rows: tuple[Rows, ...]) -> tuple[Rows, ...]:
        return tuple(each for each in rows if each.number <= newest)

    kept = {
        block_id: DecoderBlockConfig(heads=old(block.heads), ffn=old(block.ffn))
        for block_id, block in zip(config.block_ids, config.blocks, strict=True)
        if block.generation <= newest
    }
    groups = sum(rows.count for rows in next(iter(kept.values())).heads)
    sizes = {"num_heads": groups * config.group_size, "num_kv_heads": groups}
    return config.model_copy(update=sizes | {"blocks": tuple(kept.values()), "block_ids": tuple(kept)})


def widened_decoder(config: DecoderConfig, factor: int) -> DecoderConfig:
    """`config` with `factor` times its width, heads and FFN units, in the same generations.

    Raises UserError if the factor is below 2.
    """
    if factor < 2:
        raise UserError(f"widening multiplies the width by {factor}; it must be 2 or more")

    def more(rows: tuple[Rows, ...]) -> tuple[Rows, ...]:
        return tuple(each.model_copy(update={"count": factor * each.count}) for each in rows)

    blocks = tuple(DecoderBlockConfig(heads=more(block.heads), ffn=more(block.ffn)) for block in config.blocks)
    sizes = {name: factor * getattr(config, name) for name in ("hidden_size", "num_heads", "num_kv_heads")}
    return config.model_copy(update=sizes | {"blocks": blocks})


def _listed(added: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in added.items())
