"""Growth policies of configurations: which preserve the function, and how each changes tau.

Imports no torch.

A growth adds one generation of parameter tokens: to the Pattentions that grow, and as new layers. A policy sets the
initial values of the new tokens (`init`), the scale of the scores, at the growth and over the steps that follow
(`tau`), whether data tokens read all new tokens (`routing`), and where new layers go (`depth`; see `model.depth`).
`model.config_growth` applies it. tau itself is data: computed once, and stored in the configuration from then on.
"""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, NonNegativeFloat, model_validator

from model.decoder_config import DecoderConfig
from model.depth import COPYING, COPYING_JUMPS, Depth
from model.shapes import ModelConfig
from model.strict import Strict, example
from model.tokenformer_config import ROUTED_SOFTMAX, Routing, TokenformerConfig, published_tau

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
    """Initial keys and values of new parameter tokens. random: as in a new model. matched: random, scaled to the root
    mean square of the old ones. zero-key: zero keys, random values. zero-value: random keys, zero values. copy: copies
    of the old tokens."""
    tau: Annotated[TauPolicy, example("frozen")] = "ramp"
    """What happens to tau, the factor on the scores, when a Pattention grows to n tokens. ramp: tau moves to sqrt(n)
    along with the ramp of the new keys. frozen: tau stays the same. anneal: tau moves to sqrt(n) over a share of the
    stage. recompute: tau is sqrt(n) at once. per-generation: new tokens have their own norm and tau."""
    copy_noise: Annotated[NonNegativeFloat, example(0.01, "standard deviations of a new token")] = 0.0
    """Size of the noise added to copied weights: with `init: copy`, a multiple of a random new token's weights; in a
    widened decoder, of a matrix's root mean square."""
    depth: Annotated[Depth, example("interleave")] = "append"
    """Where new layers go. append: after the last layer. interleave: evenly between the old layers. In both cases they
    start as the identity. copy-stack: copies of all layers, on top of them (G_stack). copy-middle: copies of the middle
    layers, right above them (arXiv 2609.19107). Copies need `allow_jump`."""
    moments: Annotated[Moments, example("reset")] = "keep"
    """Whether a growth keeps or resets Adam's moments of the old parameters. Those of new parameters start at zero."""
    routing: Annotated[
        Routing | None, Field(exclude_if=lambda routing: routing is None), example({"groups": 8, "read": 2})
    ] = None
    """Lets each data token read only some of the new parameter tokens. By default it reads all."""
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
    if copies_layers and config.is_routed:
        return f"depth {policy.depth!r} cannot copy layers that are read in part; use 'append' or 'interleave'"
    if adds_tokens and policy.init == "copy" and (policy.routing or config.is_routed):
        return (
            f"init 'copy' keeps the function only if every token is read, so not with routing; use {_exact('matched')}"
        )
    if adds_tokens and policy.routing and config.score_function == "softmax":
        return ROUTED_SOFTMAX
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
    """Whether every Pattention is the published formula: all ramps finished, every token read, one norm for all, and
    tau = sqrt(n)."""
    return all(
        all(g.key_ramp == 1 and g.tau is None and g.routing is None for g in pattention.generations)
        and math.isclose(pattention.tau, published_tau(config.score_function, pattention.num_tokens))
        for _, pattention in config.pattentions()
    )


def has_unfinished_ramps(config: ModelConfig) -> bool:
    """Whether the keys of a generation have not reached their full weight yet. A decoder has no ramps."""
    pattentions = config.pattentions() if isinstance(config, TokenformerConfig) else ()
    return any(g.key_ramp < 1 for _, pattention in pattentions for g in pattention.generations)
