"""Growth in depth of configurations: where new blocks go, what ids they get, and their sizes.

Imports no torch.

A new block belongs to the generation of its growth, like new tokens. It is the identity at first: what its attention
and its FFN would write is zero, so it adds zeros to the residual stream, whatever the score function. Only
`copy-stack` and `copy-middle` add copies of old blocks instead, which changes the function.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, get_args

from model.config import AnyBlockConfig, LanguageModelConfig
from model.errors import UserError
from model.tokenformer_config import (
    PATTENTIONS,
    BlockConfig,
    Generation,
    PattentionConfig,
    TokenformerConfig,
    published_tau,
)

Copying = Literal["copy-stack", "copy-middle"]
Depth = Literal["append", "interleave", Copying]
"""Where growth in depth puts new blocks, and whether they are copies."""

COPYING: tuple[Copying, ...] = get_args(Copying)
"""Growths in depth whose new blocks are copies of old ones."""

COPYING_JUMPS = "changes the function; that needs allow_jump. 'append' and 'interleave' preserve it"
"""What a message says of them."""

WRITES_RESIDUAL = ("projection", "ffn", "down")
"""The parts of a block whose output is added to the residual stream. Their values or weights are zero in a new block.
"""


def copied_layers(depth: Depth, old_layers: int, new_layers: int) -> range:
    """The positions of the old blocks that the new ones copy, in order and again from the first; they follow the last.

    Empty if the new blocks are not copies. `copy-stack` copies all blocks (G_stack, arXiv 2405.15319). `copy-middle`
    copies once as many blocks from the middle as are added, as Deep Vanilla Grow and Untied-Grow (arXiv 2609.19107;
    `dep_stack_grow_init` in models/transformer.py of qlabs-eng/scaling-exponents). There, equal cores lie between the
    first and the last blocks, and growth from k cores to more inserts copies before the last blocks: core j starts as
    core j mod k. All published runs go from 2 cores to 4 and have about as many blocks before and behind as in a core,
    so they repeat the middle half: 8 blocks become 12. With an odd rest, the end gets one block more, as there.
    """
    if depth == "copy-middle":
        first = (old_layers - new_layers) // 2
        return range(first, first + new_layers)
    return range(old_layers if depth == "copy-stack" else 0)


def copied_layer(depth: Depth, old_layers: int, new_layers: int, number: int) -> int:
    """The position of the old block that the new block `number` copies under one of `COPYING`."""
    copied = copied_layers(depth, old_layers, new_layers)
    return copied[number % len(copied)]


def placed_after(depth: Depth, old_layers: int, new_layers: int) -> tuple[int, ...]:
    """For each new block, in order: the position of the old block that it follows; -1 in a model without blocks.

    `interleave` spreads the new blocks evenly, as LLaMA Pro (arXiv 2401.02415): the old blocks are divided into as many
    groups as there are new blocks, and one follows each group. More new blocks than old ones follow them in even
    numbers, as far as possible. The last new block always comes last.
    """
    if depth == "interleave":
        return tuple(-(-(j + 1) * old_layers // new_layers) - 1 for j in range(new_layers))
    return (max(copied_layers(depth, old_layers, new_layers), default=old_layers - 1),) * new_layers


def block_order(depth: Depth, old_layers: int, new_layers: int) -> list[tuple[bool, int]]:
    """For each block of the grown model, in order: whether it is new, and its number among the new or the old ones."""
    old = [(number, False, number) for number in range(old_layers)]
    new = [(after, True, number) for number, after in enumerate(placed_after(depth, old_layers, new_layers))]
    return [(is_new, number) for _, is_new, number in sorted(old + new)]


def new_block_ids(config: LanguageModelConfig, new_layers: int) -> tuple[int, ...]:
    """The ids of `new_layers` new blocks: the next ones above those of `config`."""
    first = max(config.block_ids, default=-1) + 1
    return tuple(range(first, first + new_layers))


def copied_block_id(depth: Depth, old: LanguageModelConfig, new: LanguageModelConfig, block_id: int) -> int:
    """The id of the old block that the new block `block_id` copies under one of `COPYING`."""
    added = [i for i in new.block_ids if i not in old.block_ids]
    return old.block_ids[copied_layer(depth, old.num_layers, len(added), added.index(block_id))]


def deepened(
    config: TokenformerConfig, new_layers: int, layer_tokens: tuple[int, int] | None, depth: Depth, number: int
) -> TokenformerConfig:
    """`config` with `new_layers` more blocks of generation `number`.

    `layer_tokens` are the attention and the FFN tokens of each new block; None: each is as large as the block that it
    follows. Raises UserError if a model without blocks gets no `layer_tokens`, and as `_check_copies` does.
    """
    old_layers = config.num_layers
    if depth in COPYING:
        _check_copies(config, new_layers, layer_tokens, depth)
        copied = ((config.blocks[copied_layer(depth, old_layers, new_layers, i)],) for i in range(new_layers))
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
    return config.model_copy(update=with_blocks(config, added, depth))


def with_blocks(config: LanguageModelConfig, added: Sequence[AnyBlockConfig], depth: Depth) -> dict[str, Any]:
    """The blocks of `config` and new ones, where `depth` puts them, with their ids: values of the configuration."""
    old_layers, new_layers = config.num_layers, len(added)
    order, ids = block_order(depth, old_layers, new_layers), new_block_ids(config, new_layers)
    blocks = tuple((added if is_new else config.blocks)[number] for is_new, number in order)
    block_ids = tuple((ids if is_new else config.block_ids)[number] for is_new, number in order)
    return {"blocks": blocks, "block_ids": block_ids}


def wrong_number_of_copies(depth: Depth, old_layers: int, new_layers: int) -> str | None:
    """Why `old_layers` blocks cannot be copied to `new_layers` more, or None if they can."""
    numbers = f"as the model has: {old_layers}, not {new_layers}"
    if depth == "copy-stack" and (not old_layers or new_layers % old_layers):
        return f"depth 'copy-stack' needs as many new layers, or a multiple, {numbers}"
    if depth == "copy-middle" and new_layers > old_layers:
        return f"depth 'copy-middle' needs at most as many new layers {numbers}"
    return None


def _check_copies(
    config: TokenformerConfig, new_layers: int, layer_tokens: tuple[int, int] | None, depth: Depth
) -> None:
    """Raises UserError unless `depth`, one of `COPYING`, can add `new_layers` copies of blocks of `config`."""
    if wrong_number := wrong_number_of_copies(depth, config.num_layers, new_layers):
        raise UserError(wrong_number)
    generations = [g for block in config.blocks for p in block.pattentions().values() for g in p.generations]
    for wrong, needs in (
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
            raise UserError(f"depth {depth!r} {needs}")


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
