"""Growth of configurations under a policy: what each growth adds, and tau as its ramps rise and it anneals.

Imports no torch.
"""

import math
from collections.abc import Sequence
from itertools import compress
from typing import Any, TypeVar, cast

from model.decoder_config import DecoderConfig
from model.decoder_growth import grown_decoder, shrunk_decoder, widened_decoder
from model.depth import deepened, each_once
from model.errors import UserError
from model.policy import GrowthPolicy, rejection_reason
from model.shapes import ModelConfig
from model.tokenformer_config import (
    PATTENTIONS,
    BlockConfig,
    Generation,
    PattentionConfig,
    ScoreFunction,
    TokenformerConfig,
    published_tau,
    tokens_read,
)

AnyConfig = TypeVar("AnyConfig", bound=TokenformerConfig | DecoderConfig)


def grow_config(
    config: AnyConfig,
    *,
    attention_tokens: int | Sequence[int] = 0,
    ffn_tokens: int | Sequence[int] | None = None,
    heads: int = 0,
    new_layers: int = 0,
    layer_tokens: tuple[int, int] | None = None,
    widen: int = 1,
    policy: GrowthPolicy | None = None,
) -> AnyConfig:
    """`config` with one more generation under `policy`, by default matched tokens with a ramp, which is exact.

    In each layer that a Tokenformer has, each of Q, K, V and O gets `attention_tokens` more tokens, and the FFN gets
    `ffn_tokens`: one number for all layers, or one per layer. A part that gets 0 stays as it is. Without `ffn_tokens`,
    each FFN grows in its layer's own proportion. `new_layers` more layers get `layer_tokens`: the attention tokens and
    the FFN tokens of each. Without it, a new layer is as large as the one that it follows, after this growth; a model
    without layers needs it.

    A decoder is first made `widen` times as wide. Then each FFN gets `ffn_tokens` more units, each attention `heads`
    more query heads with their share of heads of keys and values, and the model `new_layers`. Of the policy, `depth`
    and `allow_jump` count.

    Raises UserError if the model's family has no such parts, if the policy is rejected for this model, if a number is
    negative or all are zero, if copies would not be whole multiples, and if heads would not be whole groups.
    """
    policy = policy or GrowthPolicy()
    if isinstance(config, DecoderConfig):
        units = one_if_equal(tokens_by_layer(ffn_tokens or 0, config.num_layers))
        if layer_tokens or any(tokens_by_layer(attention_tokens or 0, config.num_layers)) or isinstance(units, list):
            raise UserError(
                "the layers of a decoder are alike and have no attention tokens; add heads, layers, or one number of "
                "FFN units to every layer"
            )
        wide = widened_decoder(config, widen) if widen != 1 else config
        if widen != 1 and not (units or heads or new_layers):
            return cast(AnyConfig, wide)
        added = {"ffn_tokens": units, "heads": heads, "new_layers": new_layers}
        return cast(AnyConfig, grown_decoder(wide, **added, depth=policy.depth, allow_jump=policy.allow_jump))
    if heads or widen != 1:
        raise UserError("a tokenformer grows in tokens and layers; only a decoder gains heads or width")
    if ffn_tokens is None:
        ffn_tokens = ffn_tokens_in_proportion(config, attention_tokens)
    attention, ffn = (tokens_by_layer(tokens, config.num_layers) for tokens in (attention_tokens, ffn_tokens))
    adds_tokens = any((*attention, *ffn))
    is_of_tokens = adds_tokens or not new_layers
    if reason := rejection_reason(config, policy, adds_tokens=is_of_tokens, adds_layers=new_layers > 0):
        raise UserError(reason)
    if min((*attention, *ffn, new_layers)) < 0 or not (adds_tokens or new_layers):
        raise UserError(
            f"growth adds {one_if_equal(attention)} attention and {one_if_equal(ffn)} FFN tokens to each layer, and "
            f"{new_layers} layers; each must be 0 or more, and one of them above 0"
        )
    if layer_tokens and (not new_layers or min(layer_tokens) < 1):
        raise UserError(f"layer_tokens is {layer_tokens} with {new_layers} new layers; all must be 1 or more")
    number, score_function = config.newest_generation + 1, config.score_function

    def grown(block: BlockConfig, attention_tokens: int, ffn_tokens: int) -> BlockConfig:
        added = dict.fromkeys(PATTENTIONS, attention_tokens) | {"ffn": ffn_tokens}
        parts = block.pattentions().items()
        return BlockConfig(**{name: _grown(p, added[name], number, policy, score_function) for name, p in parts})

    if adds_tokens:
        layers = zip(config.blocks, attention, ffn, strict=True)
        config = config.model_copy(update={"blocks": each_once(grown, layers)})
    return cast(AnyConfig, deepened(config, new_layers, layer_tokens, policy.depth, number) if new_layers else config)


def ffn_tokens_in_proportion(config: ModelConfig, attention_tokens: int | Sequence[int]) -> tuple[int, ...]:
    """The FFN tokens to add to each layer so that its ratio of FFN to query tokens stays the same when
    `attention_tokens` are added; empty for a decoder.

    Raises UserError as `tokens_by_layer` does.
    """
    if not isinstance(config, TokenformerConfig):
        return ()
    added = tokens_by_layer(attention_tokens, config.num_layers)
    ratios = [block.ffn.num_tokens / block.query.num_tokens for block in config.blocks]
    return tuple(round(tokens * ratio) for tokens, ratio in zip(added, ratios, strict=True))


def one_if_equal(by_layer: Sequence[int]) -> int | list[int]:
    """The numbers of all layers, for a message: one number if they are all equal, 0 if there are no layers."""
    return list(by_layer) if len(set(by_layer)) > 1 else next(iter(by_layer), 0)


def tokens_by_layer(tokens: int | Sequence[int], num_layers: int) -> tuple[int, ...]:
    """The token numbers of all layers, given one number for all or one for each.

    Raises UserError for a wrong number of layers, and for tokens for the layers of a model that has none.
    """
    by_layer = (tokens,) * num_layers if isinstance(tokens, int) else tuple(tokens)
    if len(by_layer) != num_layers or (tokens and not num_layers):
        raise UserError(f"growth adds {tokens} tokens to layers, but the model has {num_layers} layers")
    return by_layer


def _grown(
    pattention: PattentionConfig, num_tokens: int, number: int, policy: GrowthPolicy, score_function: ScoreFunction
) -> PattentionConfig:
    if num_tokens == 0:
        return pattention
    copies = num_tokens // pattention.num_tokens if policy.init == "copy" else 0
    if policy.init == "copy" and copies * pattention.num_tokens != num_tokens:
        raise UserError(
            f"growth by copies adds {num_tokens} tokens; it must add a whole multiple of the {pattention.num_tokens} "
            "tokens that the Pattention has"
        )
    if policy.init == "copy" and any(g.key_ramp != 1 for g in pattention.generations):
        raise UserError("growth by copies is only possible once the ramp of the previous growth has finished")
    read = tokens_read(num_tokens, policy.routing)
    new = Generation(
        num_tokens=num_tokens,
        number=number,
        key_ramp=0.0 if policy.tau == "ramp" else 1.0,
        tau=published_tau(score_function, read) if policy.tau == "per-generation" else None,
        copies=copies,
        tau_before=pattention.tau,
        routing=policy.routing,
    )
    grown = PattentionConfig(generations=(*pattention.generations, new), tau=pattention.tau)
    return _at_published_tau(grown, score_function) if policy.tau == "recompute" else grown


def ramp_config(config: TokenformerConfig, ramp: float) -> TokenformerConfig:
    """`config` with every key ramp raised to at least `ramp`, and with tau = sqrt(sum of g^2 n).

    At 0 nothing changes; at 1 every Pattention is the published formula again. If a frozen tau was off the formula
    before, its distance tau^2 - n stays. Pattentions without unfinished ramps do not change, and neither does their
    tau. The tau that `shrink` restores follows the ramps of the generations that it applies to.
    """

    def ramped(pattention: PattentionConfig) -> PattentionConfig:
        old = pattention.generations
        if all(generation.key_ramp >= ramp for generation in old):
            return pattention
        new = [g.model_copy(update={"key_ramp": max(g.key_ramp, ramp)}) for g in old]
        for i, generation in enumerate(old):
            if generation.tau_before is not None:
                tau_before = _tau_after(generation.tau_before, old[:i], new[:i])
                new[i] = new[i].model_copy(update={"tau_before": tau_before})
        return PattentionConfig(generations=tuple(new), tau=_tau_after(pattention.tau, old, new))

    return _mapped(config, ramped)


def _tau_after(tau: float, old: Sequence[Generation], new: Sequence[Generation]) -> float:
    """The value of `tau` after the ramps of `old` have risen to those of `new`."""
    before, after, squared = _weight(old), _weight(new), tau**2
    if before == after:
        return tau
    distance = 0.0 if math.isclose(squared, before) else squared - before
    return math.sqrt(after + distance)


def anneal_config(config: TokenformerConfig, share: float) -> TokenformerConfig:
    """`config` with every tau moved towards the published formula by `share` (0 to 1) of the distance."""

    def annealed(pattention: PattentionConfig) -> PattentionConfig:
        target = _at_published_tau(pattention, config.score_function)
        if share >= 1:
            return target
        return pattention.model_copy(update={"tau": pattention.tau + (target.tau - pattention.tau) * share})

    return _mapped(config, annealed)


def shrink_config(config: AnyConfig, drop_generations: int = 1) -> AnyConfig:
    """`config` without its newest `drop_generations` growths, and with the tau from before them.

    Layers that these growths added go too.

    Raises UserError if the model has not grown that often.
    """
    newest = config.newest_generation
    if not 1 <= drop_generations <= newest:
        allowed = f"1 to {newest} can be dropped" if newest else "this model has never grown"
        raise UserError(f"drop_generations = {drop_generations}: {allowed}; the base stays")

    if isinstance(config, DecoderConfig):
        return cast(AnyConfig, shrunk_decoder(config, newest - drop_generations))
    stays = [block.generation <= newest - drop_generations for block in config.blocks]

    def shrunk(pattention: PattentionConfig) -> PattentionConfig:
        kept = tuple(g for g in pattention.generations if g.number <= newest - drop_generations)
        dropped = pattention.generations[len(kept) :]
        if not dropped:
            return pattention
        tau = dropped[0].tau_before
        if tau is None:
            raise UserError(f"generation {dropped[0].number} has no tau_before, so the old tau cannot be restored")
        return PattentionConfig(generations=kept, tau=tau)

    ids, blocks = (tuple(compress(values, stays)) for values in (config.block_ids, config.blocks))
    return cast(AnyConfig, _mapped(config.model_copy(update={"blocks": blocks, "block_ids": ids}), shrunk))


def _mapped(config: TokenformerConfig, change: Any) -> TokenformerConfig:
    def mapped(block: BlockConfig) -> BlockConfig:
        return BlockConfig(**{name: change(p) for name, p in block.pattentions().items()})

    return config.model_copy(update={"blocks": each_once(mapped, zip(config.blocks))})


def _weight(generations: Sequence[Generation]) -> float:
    """The sum of g^2 n over the generations that share a norm, of each of which a data token reads n tokens."""
    return sum(g.key_ramp**2 * g.num_read for g in generations if g.tau is None)


def _at_published_tau(pattention: PattentionConfig, score_function: ScoreFunction) -> PattentionConfig:
    return pattention.model_copy(update={"tau": published_tau(score_function, _weight(pattention.generations))})
