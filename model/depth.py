"""Growth in depth of configurations: where new blocks go, what ids they get, and their sizes. Also the sizes that a
Transformer can grow to.

Imports no torch.

A new block belongs to the generation of its growth, like new tokens. It is the identity at first: the values of its
projection and of its FFN are zero, so it adds zeros to the residual stream, whatever the score function. Only
`copy-stack` puts copies of old blocks on top of the others instead, which changes the function.
"""

from collections.abc import Callable, Iterable
from typing import Any, Literal

from model.config import (
    PATTENTIONS,
    BlockConfig,
    Generation,
    PattentionConfig,
    TokenformerConfig,
    TransformerConfig,
    published_tau,
)
from model.errors import UserError

Depth = Literal["append", "interleave", "copy-stack"]
"""Where growth in depth puts new blocks, and whether they are copies."""

WRITES_RESIDUAL = ("projection", "ffn")
"""The Pattentions of a block whose output is added to the residual stream. Their values are zero in a new block."""


def placed_after(depth: Depth, old_layers: int, new_layers: int) -> tuple[int, ...]:
    """For each new block, in order: the position of the old block that it follows; -1 in a model without blocks.

    `interleave` spreads the new blocks evenly, as LLaMA Pro (arXiv 2401.02415): the old blocks are divided into as many
    groups as there are new blocks, and one follows each group. More new blocks than old ones follow them in even
    numbers, as far as possible. The last new block always comes last.
    """
    if depth == "interleave":
        return tuple(-(-(j + 1) * old_layers // new_layers) - 1 for j in range(new_layers))
    return (old_layers - 1,) * new_layers


def block_order(depth: Depth, old_layers: int, new_layers: int) -> list[tuple[bool, int]]:
    """For each block of the grown model, in order: whether it is new, and its number among the new or the old ones."""
    old = [(number, False, number) for number in range(old_layers)]
    new = [(after, True, number) for number, after in enumerate(placed_after(depth, old_layers, new_layers))]
    return [(is_new, number) for _, is_new, number in sorted(old + new)]


def new_block_ids(config: TokenformerConfig, new_layers: int) -> tuple[int, ...]:
    """The ids of `new_layers` new blocks: the next ones above those of `config`."""
    first = max(config.block_ids, default=-1) + 1
    return tuple(range(first, first + new_layers))


def copied_block_id(old: TokenformerConfig, new: TokenformerConfig, block_id: int) -> int:
    """The id of the old block that the new block `block_id` copies under `copy-stack` (G_stack, arXiv 2405.15319)."""
    added = [i for i in new.block_ids if i not in old.block_ids]
    return old.block_ids[added.index(block_id) % old.num_layers]


def deepened(
    config: TokenformerConfig, new_layers: int, layer_tokens: tuple[int, int] | None, depth: Depth, number: int
) -> TokenformerConfig:
    """`config` with `new_layers` more blocks of generation `number`.

    `layer_tokens` are the attention and the FFN tokens of each new block; None: each is as large as the block that it
    follows. Raises UserError if a model without blocks gets no `layer_tokens`, and as `_check_stack` does.
    """
    old_layers = config.num_layers
    if depth == "copy-stack":
        _check_stack(config, new_layers, layer_tokens)
        copied = ((config.blocks[i % old_layers],) for i in range(new_layers))
        added = each_once(
            lambda block: _block({name: (p.num_tokens, p.tau) for name, p in block.pattentions().items()}, number),
            copied,
        )
    else:
        if not old_layers and layer_tokens is None:
            raise UserError(
                "layer_tokens is missing: new layers are as large as the layer that they follow, but this model has "
                "none; give the attention and the FFN tokens of a new layer"
            )

        def identity(follows: BlockConfig | None) -> BlockConfig:
            if layer_tokens:
                sizes = dict.fromkeys(PATTENTIONS, layer_tokens[0]) | {"ffn": layer_tokens[1]}
            else:
                assert follows
                sizes = {name: pattention.num_tokens for name, pattention in follows.pattentions().items()}
            return _block({name: (n, published_tau(config.score_function, n)) for name, n in sizes.items()}, number)

        follows = placed_after(depth, old_layers, new_layers)
        added = each_once(identity, ((config.blocks[i] if old_layers else None,) for i in follows))
    order, ids = block_order(depth, old_layers, new_layers), new_block_ids(config, new_layers)
    blocks = tuple((added if is_new else config.blocks)[number] for is_new, number in order)
    block_ids = tuple((ids if is_new else config.block_ids)[number] for is_new, number in order)
    return config.model_copy(update={"blocks": blocks, "block_ids": block_ids})


def check_transformer_growth(old: TransformerConfig, new: TransformerConfig, depth: Depth) -> None:
    """Raises UserError, with what can grow, unless `old` can grow to `new` (model/transformer_growth.py)."""
    factor = new.hidden_size // old.hidden_size
    widened = {"hidden_size": factor * old.hidden_size, "num_heads": factor * old.num_heads}
    more = {"ffn_size": max(new.ffn_size, factor * old.ffn_size), "num_layers": max(new.num_layers, old.num_layers)}
    if new != old.model_copy(update=widened | more):
        sizes = [", ".join(f"{key} {getattr(each, key)}" for key in widened | more) for each in (old, new)]
        raise UserError(
            f"a transformer of {sizes[0]} cannot grow to {sizes[1]}: hidden_size and num_heads can grow by one whole "
            "factor, ffn_size by that factor or more, num_layers by any number; the rest must stay"
        )
    new_layers = new.num_layers - old.num_layers
    if depth == "copy-stack" and new_layers % old.num_layers:
        raise UserError(f"depth 'copy-stack' {_whole_stack(old.num_layers, new_layers)}")


def _whole_stack(old_layers: int, new_layers: int) -> str:
    return f"needs as many new layers, or a multiple, as the model has: {old_layers}, not {new_layers}"


def _check_stack(config: TokenformerConfig, new_layers: int, layer_tokens: tuple[int, int] | None) -> None:
    """Raises UserError unless `copy-stack` can copy the blocks of `config` that often."""
    generations = [g for block in config.blocks for p in block.pattentions().values() for g in p.generations]
    for wrong, needs in (
        (
            not config.num_layers or new_layers % config.num_layers,
            _whole_stack(config.num_layers, new_layers),
        ),
        (layer_tokens, "copies whole layers; layer_tokens cannot set another size"),
        (
            any(g.key_ramp != 1 for g in generations),
            "is only possible once the ramp of the previous growth has finished",
        ),
        (
            any(g.tau is not None for g in generations),
            "cannot copy generations with a norm of their own (tau 'per-generation'); use 'append' or 'interleave'",
        ),
    ):
        if wrong:
            raise UserError(f"depth 'copy-stack' {needs}")


def _block(sizes: dict[str, tuple[int, float]], number: int) -> BlockConfig:
    """A block of one generation, given the tokens and the tau of each Pattention."""
    return BlockConfig(
        **{
            name: PattentionConfig(generations=(Generation(num_tokens=num_tokens, number=number),), tau=tau)
            for name, (num_tokens, tau) in sizes.items()
        }
    )


def each_once(change: Callable[..., BlockConfig], layers: Iterable[tuple[Any, ...]]) -> tuple[BlockConfig, ...]:
    """`change` of every layer's arguments, the first of which is a block. Layers of one block get one block again.

    A ladder's plan grows a model of many equal layers dozens of times.
    """
    known: dict[tuple[Any, ...], BlockConfig] = {}
    blocks = []
    for block, *others in layers:
        key = (id(block), *others)
        if key not in known:
            known[key] = change(block, *others)
        blocks.append(known[key])
    return tuple(blocks)
