"""Growth policies of configurations: which preserve the function, and how each changes tau.

Imports no torch.

A growth adds one generation of parameter tokens: to the Pattentions that grow, and as new layers. A policy sets the
initial values of the new tokens (`init`), the scale of the scores, at the growth and over the steps that follow
(`tau`), and where new layers go (`depth`; see `model.depth`). tau itself is data: this module computes it, and the
configuration stores it from then on.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Annotated, Any, Literal, Self, TypeVar, cast

from pydantic import ConfigDict, NonNegativeFloat, model_validator

from model.config import (
    PATTENTIONS,
    BlockConfig,
    Generation,
    PattentionConfig,
    ScoreFunction,
    TokenformerConfig,
    published_tau,
)
from model.decoder_config import DecoderConfig
from model.decoder_growth import grown_decoder, shrunk_decoder, widened_decoder
from model.depth import COPYING, COPYING_JUMPS, Depth, deepened, each_once
from model.errors import UserError
from model.shapes import ModelConfig
from model.strict import Strict, example

AnyConfig = TypeVar("AnyConfig", bound=TokenformerConfig | DecoderConfig)

EXACT_GROWTH = 1e-5
"""Nats by which a growth that preserves the function may move the validation loss: float32 rounding."""

Init = Literal["random", "matched", "zero-key", "zero-value", "copy"]
"""What new tokens start as."""

TauPolicy = Literal["ramp", "anneal", "frozen", "recompute", "per-generation"]
"""What becomes of the scale of the scores."""

Moments = Literal["keep", "reset"]
"""What becomes of Adam's moments of the old parameters."""

Preset = Literal["growctl-default", "official", "paper-appendix"]
"""Policies with a name (`PRESETS`)."""

PRESETS: dict[Preset, dict[str, Any]] = {
    "growctl-default": {"init": "matched", "tau": "ramp"},
    "official": {"init": "random", "tau": "recompute", "moments": "reset", "allow_jump": True},
    "paper-appendix": {"init": "zero-key", "tau": "frozen"},
}
"""Policies by name: growctl's default, the official code's (arXiv 2410.23168), and the one that the paper's appendix
proves exact."""

EXACT_TAUS: dict[Init, tuple[TauPolicy, ...]] = {
    "random": ("ramp",),
    "matched": ("ramp",),
    "zero-key": ("frozen", "anneal"),
    "zero-value": ("per-generation",),
    "copy": ("recompute",),
}
"""With which tau each init preserves the function."""


class GrowthPolicy(Strict):
    """What happens at the moment of a growth. Raises pydantic's ValidationError for an invalid combination."""

    model_config = ConfigDict(allow_inf_nan=False, use_attribute_docstrings=True)

    init: Annotated[Init, example("zero-value")] = "matched"
    """Initial keys and values of new tokens. random: as in a new model. matched: as random, scaled to the root mean
    square of the old ones. zero-key, zero-value: keys or values are zero. copy: copies of the old tokens."""
    tau: Annotated[TauPolicy, example("frozen")] = "ramp"
    """What happens to tau, the factor on the scores. ramp: new keys rise from 0, and tau follows to sqrt(n). frozen:
    tau stays. anneal: tau stays at growth, then moves to sqrt(n). recompute: tau is sqrt(n) at once. per-generation:
    the new generation is normalised separately, with its own tau."""
    copy_noise: Annotated[NonNegativeFloat, example(0.01, "standard deviations of a new token")] = 0.0
    """Noise added to copies, in units of a new token's standard deviation (`init: copy`); of a widened decoder,
    relative to a matrix's root mean square."""
    depth: Annotated[Depth, example("interleave")] = "append"
    """Where new layers go (`stages.N.num_layers`). append: after the last one. interleave: spread evenly between the
    old ones. copy-stack: copies of all layers on top of them (G_stack). copy-middle: copies of as many middle layers as
    are added, right above these (arXiv 2609.19107). Copies need allow_jump."""
    moments: Annotated[Moments, example("reset")] = "keep"
    """Whether a growth keeps or resets Adam's moments of the old parameters. Moments of new ones start at zero."""
    allow_jump: Annotated[bool, example(True)] = False
    """Whether a growth may change the function that the model computes."""

    @classmethod
    def of(cls, preset: Preset, **changes: Any) -> Self:
        """The policy that `preset` names, with `changes`."""
        return cls(**(PRESETS[preset] | changes))

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if reason := invalid_combination(self.init, self.tau):
            raise ValueError(reason)
        return self


def invalid_combination(init: Init, tau: TauPolicy, copy_noise: float = 0.0) -> str | None:
    """Why no model can grow with this combination, or None if it is valid.

    A ramp raises random keys from zero; with zero values too, they would get no gradient. The norm of a row of zero
    scores is zero, and a separate norm would divide by it.
    """
    if (tau == "ramp" and EXACT_TAUS[init] != ("ramp",)) or (init, tau) == ("zero-key", "per-generation"):
        return f"init {init!r} cannot be combined with tau {tau!r}; use {_exact(init)}"
    if copy_noise and init != "copy":
        return f"copy_noise {copy_noise:g} needs init 'copy', not {init!r}"
    return None


def rejection_reason(
    config: TokenformerConfig, policy: GrowthPolicy, *, adds_tokens: bool = True, adds_layers: bool = False
) -> str | None:
    """Why growctl rejects growth of `config` under `policy`, or None.

    `adds_tokens`: to old layers. A growth in depth alone has no new tokens that `init` and `tau` apply to.
    """
    if reason := invalid_combination(policy.init, policy.tau, policy.copy_noise):
        return reason
    copies_layers = adds_layers and policy.depth in COPYING
    if copies_layers and adds_tokens:
        return f"depth {policy.depth!r} cannot add tokens to layers in the same growth; add them in another growth"
    if adds_tokens and _is_from_zero_scores(config, policy):
        return (
            f"init {policy.init!r} with tau {policy.tau!r} starts from zero scores, which score_function 'softmax' "
            f"turns into exp(0) = 1; use {_exact('zero-value')}, or {_exact('copy')}"
        )
    if policy.allow_jump or preserves(config, policy, adds_tokens=adds_tokens, adds_layers=adds_layers):
        return None
    if copies_layers:
        return f"depth {policy.depth!r} {COPYING_JUMPS}"
    with_noise = f" and copy_noise {policy.copy_noise:g}" if policy.copy_noise else ""
    off_formula = policy.init == "copy" and not is_published(config)
    why = ", because tau is not sqrt(n) or not shared by all tokens" if off_formula else ""
    return (
        f"init {policy.init!r} with tau {policy.tau!r}{with_noise} changes the function{why}; that needs allow_jump. "
        f"These preserve it: {'; '.join(map(_exact, EXACT_TAUS))}"
    )


def preserves(
    config: ModelConfig, policy: GrowthPolicy, *, adds_tokens: bool = True, adds_layers: bool = False
) -> bool:
    """Whether a growth of `config` computes the same function, up to floating-point rounding.

    The norm of copies and the recomputed tau grow by the same factor only if tau was sqrt(n) before.
    """
    if adds_layers and policy.depth in COPYING:
        return False
    if not adds_tokens or isinstance(config, DecoderConfig):
        return True
    if policy.init == "copy" and (policy.copy_noise or not is_published(config)):
        return False
    return policy.tau in EXACT_TAUS[policy.init] and not _is_from_zero_scores(config, policy)


def _is_from_zero_scores(config: TokenformerConfig, policy: GrowthPolicy) -> bool:
    return config.score_function == "softmax" and (policy.tau == "ramp" or policy.init == "zero-key")


def _exact(init: Init) -> str:
    return f"init {init!r} with tau {' or '.join(map(repr, EXACT_TAUS[init]))}"


def is_published(config: TokenformerConfig) -> bool:
    """Whether every Pattention is the published formula: all ramps finished, one norm for all tokens, tau = sqrt(n)."""
    return all(
        all(g.key_ramp == 1 and g.tau is None for g in pattention.generations)
        and math.isclose(pattention.tau, published_tau(config.score_function, pattention.num_tokens))
        for pattention in _pattentions(config)
    )


def has_unfinished_ramps(config: ModelConfig) -> bool:
    """Whether the keys of a generation have not reached their full weight yet. A decoder has no ramps."""
    pattentions = _pattentions(config) if isinstance(config, TokenformerConfig) else ()
    return any(g.key_ramp < 1 for pattention in pattentions for g in pattention.generations)


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
    new = Generation(
        num_tokens=num_tokens,
        number=number,
        key_ramp=0.0 if policy.tau == "ramp" else 1.0,
        tau=published_tau(score_function, num_tokens) if policy.tau == "per-generation" else None,
        copies=copies,
        tau_before=pattention.tau,
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


def _pattentions(config: TokenformerConfig) -> Iterator[PattentionConfig]:
    return (pattention for block in config.blocks for pattention in block.pattentions().values())


def _mapped(config: TokenformerConfig, change: Any) -> TokenformerConfig:
    def mapped(block: BlockConfig) -> BlockConfig:
        return BlockConfig(**{name: change(p) for name, p in block.pattentions().items()})

    return config.model_copy(update={"blocks": each_once(mapped, zip(config.blocks))})


def _weight(generations: Sequence[Generation]) -> float:
    """The sum of g^2 n over the generations that share a norm."""
    return sum(g.key_ramp**2 * g.num_tokens for g in generations if g.tau is None)


def _at_published_tau(pattention: PattentionConfig, score_function: ScoreFunction) -> PattentionConfig:
    return pattention.model_copy(update={"tau": published_tau(score_function, _weight(pattention.generations))})
