"""How a configuration grows: the policies, which of them keep the function, and what becomes of tau. No torch here.

A growth adds one generation of parameter tokens to the Pattentions that grow. A policy says what the new tokens begin
with (`init`), and what becomes of the scale of the scores, at once and over the steps that follow (`tau`). tau itself
is data: it is written here once and carried in the configuration from then on.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Self

from pydantic import ConfigDict, NonNegativeFloat, model_validator

from model.config import (
    PATTENTIONS,
    BlockConfig,
    Generation,
    PattentionConfig,
    ScoreFunction,
    TokenformerConfig,
    TransformerConfig,
    published_tau,
)
from model.errors import UserError
from model.strict import Strict

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
"""Policies by name: ours; what the official code does (arXiv 2410.23168); what the paper's appendix proves exact."""


class GrowthPolicy(Strict):
    """What happens at the moment of a growth. ValueError (pydantic's) for a combination that makes no sense."""

    model_config = ConfigDict(allow_inf_nan=False)

    init: Init = "matched"
    """What new tokens begin with. `random`: keys and values as a new model draws them; `matched`: the same, scaled to
    the root mean square of the old ones; one of the two zero; or copies."""

    tau: TauPolicy = "ramp"
    """`ramp`: new keys are multiplied by g, from 0 to 1, and tau follows as sqrt(n_old + g^2 n_new). `frozen`: stays.
    `anneal`: stays at growth, then moves to sqrt(n). `recompute`: sqrt(n) at once. `per-generation`: the new generation
    is normalised by itself with its own sqrt(n_new), and added."""

    copy_noise: NonNegativeFloat = 0.0
    """Noise on copies, in units of a new token's standard deviation. On values it sums to zero over the copies."""

    moments: Moments = "keep"
    """Adam's moments of the old parameters. A new generation's are zero, with a step of its own from 0."""

    allow_jump: bool = False
    """Whether the growth may change the function."""

    @classmethod
    def of(cls, preset: Preset, **changes: Any) -> Self:
        """The policy of a preset, with changes."""
        return cls(**(PRESETS[preset] | changes))

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if reason := senseless(self.init, self.tau, self.copy_noise):
            raise ValueError(reason)
        return self


def senseless(init: Init, tau: TauPolicy, copy_noise: float) -> str | None:
    """Why this combination is refused under any circumstances, or None."""
    if tau == "ramp" and init not in ("random", "matched"):
        nothing = ", and keys and values at zero together get no gradient" if init == "zero-value" else ""
        instead = {"zero-key": "'frozen' or 'anneal'", "zero-value": "'per-generation'", "copy": "'recompute'"}[init]
        return (
            f"init {init!r} does not go with tau 'ramp' (the default), which brings random keys in from zero{nothing}; "
            f"use tau {instead}"
        )
    if tau == "per-generation" and init == "zero-key":
        return "init 'zero-key' does not go with tau 'per-generation': a row of zero scores has no norm to divide by"
    if copy_noise and init != "copy":
        return f"copy_noise {copy_noise:g} is for init 'copy', not {init!r}"
    return None


def refused(policy: GrowthPolicy, score_function: ScoreFunction, *, published: bool = True) -> str | None:
    """Why growth under `policy` is refused, or None. `published`: as `is_published` says of the model that grows."""
    if score_function == "softmax" and (policy.tau == "ramp" or policy.init == "zero-key"):
        how = "a ramp from zero keys" if policy.tau == "ramp" else "zero keys"
        return (
            f"score_function 'softmax' cannot be grown by {how}: exp(0) = 1 would change the function; "
            "use init 'zero-value' with tau 'per-generation', or init 'copy' with tau 'recompute'"
        )
    if not policy.allow_jump and not preserves(policy, score_function, published=published):
        with_noise = f" and copy_noise {policy.copy_noise:g}" if policy.copy_noise else ""
        where = "" if published or policy.init != "copy" else ", here where tau is not sqrt(n) or not shared by all,"
        return (
            f"init {policy.init!r} with tau {policy.tau!r}{with_noise}{where} changes the function; that needs "
            "allow_jump. These keep it: random or matched with ramp; zero-key with frozen or anneal; zero-value with "
            "per-generation; copy with recompute"
        )
    return None


def preserves(policy: GrowthPolicy, score_function: ScoreFunction, *, published: bool = True) -> bool:
    """Whether the model right after growth is the same function, up to the rounding of floats.

    `published` matters to copies only: their norm and the recomputed tau grow alike where tau was the formula's.
    """
    if policy.tau == "ramp" or policy.init == "zero-key":
        return policy.tau in ("ramp", "frozen", "anneal") and score_function != "softmax"
    if policy.init == "zero-value":
        return policy.tau == "per-generation"
    return policy.init == "copy" and policy.tau == "recompute" and policy.copy_noise == 0 and published


def is_published(config: TokenformerConfig) -> bool:
    """Whether every Pattention is the published formula: all keys ramped in, one norm for all, tau sqrt(n)."""
    return all(
        all(g.key_ramp == 1 and g.tau is None for g in pattention.generations)
        and math.isclose(pattention.tau, published_tau(config.score_function, pattention.num_tokens))
        for pattention in _pattentions(config)
    )


def grow_config(
    config: TokenformerConfig | TransformerConfig,
    *,
    attention_tokens: int | Sequence[int],
    ffn_tokens: int | Sequence[int],
    policy: GrowthPolicy | None = None,
) -> TokenformerConfig:
    """`config` with one more generation, under `policy` (by default matched tokens, keys at ramp 0: the same function).

    `attention_tokens` is added to each of Q, K, V and O, `ffn_tokens` to the FFN: one number for every layer, or a
    number a layer. 0 leaves that part alone.

    Raises UserError for a Transformer, where the policy is refused for this model, when nothing or less than nothing
    is added, and where copies would not be whole.
    """
    policy = policy or GrowthPolicy()
    if not isinstance(config, TokenformerConfig):
        raise UserError(f"a {config.family} has no parameter tokens to add to; only a tokenformer grows so")
    if reason := refused(policy, config.score_function, published=is_published(config)):
        raise UserError(reason)
    attention, ffn = (_by_layer(tokens, config.num_layers) for tokens in (attention_tokens, ffn_tokens))
    if min(*attention, *ffn) < 0 or max(*attention, *ffn) == 0:
        raise UserError(
            f"growth adds {one_if_equal(attention)} attention and {one_if_equal(ffn)} FFN tokens; "
            "both must be at least 0, one above"
        )
    number = config.newest_generation + 1
    blocks = []
    for i, block in enumerate(config.blocks):
        added = dict.fromkeys(PATTENTIONS, attention[i]) | {"ffn": ffn[i]}
        pattentions = block.pattentions().items()
        grown = {name: _grown(p, added[name], number, policy, config.score_function) for name, p in pattentions}
        blocks.append(BlockConfig(**grown))
    return config.model_copy(update={"blocks": tuple(blocks)})


def one_if_equal(by_layer: Sequence[int]) -> int | list[int]:
    """One number where all layers have the same, for people to read."""
    return by_layer[0] if len(set(by_layer)) == 1 else list(by_layer)


def _by_layer(tokens: int | Sequence[int], num_layers: int) -> Sequence[int]:
    if isinstance(tokens, int):
        return (tokens,) * num_layers
    if len(tokens) != num_layers:
        raise UserError(f"growth says how many tokens for {len(tokens)} layers; the model has {num_layers}")
    return tokens


def _grown(
    pattention: PattentionConfig, num_tokens: int, number: int, policy: GrowthPolicy, score_function: ScoreFunction
) -> PattentionConfig:
    if num_tokens == 0:
        return pattention
    copies = num_tokens // pattention.num_tokens if policy.init == "copy" else 0
    if policy.init == "copy" and copies * pattention.num_tokens != num_tokens:
        raise UserError(
            f"growth by copies adds whole multiples of the {pattention.num_tokens} tokens there are, not {num_tokens}"
        )
    if policy.init == "copy" and any(g.key_ramp != 1 for g in pattention.generations):
        raise UserError("growth by copies needs the ramp of the growth before to be over")
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
    """`config` with every key ramp raised to at least `ramp`, and tau following: sqrt(sum of g^2 n).

    At 0 nothing changes; at 1 every Pattention has the published formula again (one whose tau was frozen off it before
    keeps its distance, tau^2 - n). Pattentions that are fully ramped in are left as they are, tau included. The tau
    that `shrink` goes back to follows the ramps of the generations it is for.
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
    """What `tau` becomes as the ramps of `old` rise to those of `new`."""
    before, after, squared = _weight(old), _weight(new), tau**2
    if before == after:
        return tau
    distance = 0.0 if math.isclose(squared, before) else squared - before
    return math.sqrt(after + distance)


def anneal_config(config: TokenformerConfig, share: float) -> TokenformerConfig:
    """`config` with every tau moved by `share` (0 to 1) of its way to the published formula."""

    def annealed(pattention: PattentionConfig) -> PattentionConfig:
        target = _at_published_tau(pattention, config.score_function)
        if share >= 1:
            return target
        return pattention.model_copy(update={"tau": pattention.tau + (target.tau - pattention.tau) * share})

    return _mapped(config, annealed)


def shrink_config(config: TokenformerConfig | TransformerConfig, drop_generations: int = 1) -> TokenformerConfig:
    """`config` without its newest `drop_generations` growths, and with the tau that was before them.

    Raises UserError for a Transformer and where the model was not grown that often.
    """
    if not isinstance(config, TokenformerConfig):
        raise UserError(f"a {config.family} has no generations of parameter tokens to drop")
    newest = config.newest_generation
    if not 1 <= drop_generations <= newest:
        allowed = f"1 to {newest} can be dropped" if newest else "this model was never grown"
        raise UserError(f"drop_generations = {drop_generations}: {allowed}; the base stays")

    def shrunk(pattention: PattentionConfig) -> PattentionConfig:
        kept = tuple(g for g in pattention.generations if g.number <= newest - drop_generations)
        dropped = pattention.generations[len(kept) :]
        if not dropped:
            return pattention
        tau = dropped[0].tau_before
        if tau is None:
            raise UserError(f"generation {dropped[0].number} does not say what tau was before it, to go back to")
        return PattentionConfig(generations=kept, tau=tau)

    return _mapped(config, shrunk)


def _pattentions(config: TokenformerConfig) -> Iterator[PattentionConfig]:
    return (pattention for block in config.blocks for pattention in block.pattentions().values())


def _mapped(config: TokenformerConfig, change: Any) -> TokenformerConfig:
    blocks = tuple(BlockConfig(**{name: change(p) for name, p in b.pattentions().items()}) for b in config.blocks)
    return config.model_copy(update={"blocks": blocks})


def _weight(generations: Sequence[Generation]) -> float:
    """The sum of g^2 n over the generations that are normalised together."""
    return sum(g.key_ramp**2 * g.num_tokens for g in generations if g.tau is None)


def _at_published_tau(pattention: PattentionConfig, score_function: ScoreFunction) -> PattentionConfig:
    return pattention.model_copy(update={"tau": published_tau(score_function, _weight(pattention.generations))})
