"""Growths for tests: every policy written out, and small models grown several times in a row.

The tables do not use `model.policy`: tests compare it with them.
"""

from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from model.config_growth import anneal_config, grow_config, ramp_config
from model.decoder_config import DecoderConfig, decoder_config
from model.growth import draw_added
from model.initialization import build_model, initial_parameter
from model.policy import GrowthPolicy, Init, TauPolicy
from model.shapes import parameter_shapes
from model.tokenformer_config import ScoreFunction, TokenformerConfig, tokenformer_config

INITS: tuple[Init, ...] = ("random", "matched", "zero-key", "zero-value", "copy")
TAUS: tuple[TauPolicy, ...] = ("ramp", "anneal", "frozen", "recompute", "per-generation")
SCORE_FUNCTIONS: tuple[ScoreFunction, ...] = ("l2_norm_gelu", "gelu_l2_norm", "softmax")

INVALID = {("zero-key", "ramp"), ("zero-value", "ramp"), ("copy", "ramp"), ("zero-key", "per-generation")}
VALID = [pair for pair in product(INITS, TAUS) if pair not in INVALID]
EXACT = {
    ("random", "ramp"),
    ("matched", "ramp"),
    ("zero-key", "frozen"),
    ("zero-key", "anneal"),
    ("zero-value", "per-generation"),
    ("copy", "recompute"),
}
"""Policies that preserve the function; copies only if the model that grows is the published formula."""

NEVER_SOFTMAX = {(init, tau) for init, tau in VALID if tau == "ramp" or init == "zero-key"}
"""Policies that add zero scores, which softmax turns into exp(0) = 1."""

POSSIBLE = [
    (init, tau, score_function)
    for (init, tau), score_function in product(VALID, SCORE_FUNCTIONS)
    if score_function != "softmax" or (init, tau) not in NEVER_SOFTMAX
]
"""All policies that are possible with allow_jump."""

IDS = torch.randint(0, 29, (2, 7), generator=torch.Generator().manual_seed(3))


SHAPE: dict[str, Any] = {"num_layers": 2, "vocab_size": 29, "hidden_size": 8, "num_heads": 1}


def small_config(**changes) -> TokenformerConfig:
    return tokenformer_config(**(SHAPE | {"attention_tokens": 4, "ffn_tokens": 6} | changes))


def small_decoder(**changes) -> DecoderConfig:
    return decoder_config(**(SHAPE | {"ffn_tokens": 16} | changes))


def allowed(init: Any, tau: Any, **changes) -> GrowthPolicy:
    return GrowthPolicy(init=init, tau=tau, allow_jump=True, **changes)


def formula(
    x_BTD: Tensor, key_ND: Tensor, value_ND: Tensor, tau: float | Tensor, score_function: ScoreFunction
) -> Tensor:
    """The published formulas written out."""
    a_BTN = x_BTD @ key_ND.mT
    if score_function == "l2_norm_gelu":
        return F.gelu(a_BTN * (tau / a_BTN.norm(dim=-1, keepdim=True))) @ value_ND
    if score_function == "gelu_l2_norm":
        return F.gelu(a_BTN) * (tau / F.gelu(a_BTN).norm(dim=-1, keepdim=True)) @ value_ND
    return a_BTN.softmax(dim=-1) * tau @ value_ND


def moved(config: TokenformerConfig, tau: str, share: float) -> TokenformerConfig:
    """The scales after `share` of the steps over which a stage moves them."""
    if tau == "anneal":
        return anneal_config(config, share)
    return ramp_config(config, share) if tau == "ramp" else config


class Growth(NamedTuple):
    """A growth, and how far the following stage got with its ramp or annealing."""

    policy: GrowthPolicy
    attention_tokens: list[int]
    ffn_tokens: list[int]
    share: float = 0.0

    def of(self, config: TokenformerConfig) -> TokenformerConfig:
        """The configuration right after the growth."""
        policy, attention_tokens, ffn_tokens, _ = self
        return grow_config(config, attention_tokens=attention_tokens, ffn_tokens=ffn_tokens, policy=policy)


class History(NamedTuple):
    """The history of a model: its base, then growths, with training in between."""

    base: TokenformerConfig
    growths: list[Growth]
    config: TokenformerConfig
    """The configuration after the stage of the last growth."""

    def then(self, growth: Growth) -> "History":
        config = moved(growth.of(self.config), growth.policy.tau, growth.share)
        return History(self.base, [*self.growths, growth], config)

    def ramped(self) -> "History":
        """The same history with all ramps finished."""
        growths = [g._replace(share=1.0 if g.policy.tau == "ramp" else g.share) for g in self.growths]
        return self._replace(growths=growths, config=ramp_config(self.config, 1.0))


@st.composite
def growths(draw, config: TokenformerConfig, init: str, tau: str, *, noise=0.0, everywhere=False, finished=False):
    """A growth by at least one token or, with `everywhere`, by at least one in every Pattention."""
    fewest = 1 if everywhere else 0

    def tokens(there: int) -> int:
        return there * draw(st.integers(fewest, 2)) if init == "copy" else draw(st.integers(fewest, 5))

    attention = [tokens(block.query.num_tokens) for block in config.blocks]
    ffn = [tokens(block.ffn.num_tokens) for block in config.blocks]
    if not any(attention + ffn):
        ffn[-1] = config.blocks[-1].ffn.num_tokens
    shares = [1.0] if finished else [0.0, 0.3, 1.0]
    share = draw(st.sampled_from(shares)) if tau in ("ramp", "anneal") else 0.0
    return Growth(allowed(init, tau, copy_noise=noise), attention, ffn, share)


@st.composite
def histories(draw, score_function: str, max_growths: int = 3, *, published: bool = False) -> History:
    """A small base, grown up to `max_growths` times with any policies that its score function allows.

    A stage may have ended before its ramp or annealing finished. `published`: only policies that end in the published
    formula.
    """
    off = ("frozen", "per-generation") if published else ()
    policies = [(init, tau) for init, tau, s in POSSIBLE if s == score_function and tau not in off]
    sizes = {name: draw(st.integers(1, 6)) for name in ("attention_tokens", "ffn_tokens")}
    base = small_config(score_function=score_function, **sizes)
    history = History(base, [], base)
    for _ in range(draw(st.integers(0, max_growths))):
        init, tau = draw(st.sampled_from(policies))
        history = history.ramped() if init == "copy" else history
        noise = draw(st.sampled_from([0.0, 0.5])) if init == "copy" else 0.0
        history = history.then(draw(growths(history.config, init, tau, noise=noise, finished=published)))
    return history


@st.composite
def histories_and_growths(draw, score_functions=SCORE_FUNCTIONS) -> tuple[History, Growth]:
    """A model that has grown before, and one more growth with any valid policy."""
    init, tau, score_function = draw(st.sampled_from([p for p in POSSIBLE if p[2] in score_functions]))
    history = draw(histories(score_function))
    history = history.ramped() if init == "copy" else history
    return history, draw(growths(history.config, init, tau))


class Grown(NamedTuple):
    """A model as data: its configuration and its values, float64."""

    config: TokenformerConfig
    values: dict[str, Tensor]

    def rms_of(self, name: str) -> float:
        return self.values[name].square().mean().sqrt().item()

    def model(self, dtype: torch.dtype = torch.float64):
        model = build_model(self.config).to(dtype)
        model.load_state_dict(self.values)
        return model

    def logits(self, dtype: torch.dtype = torch.float64) -> Tensor:
        with torch.no_grad():
            return self.model(dtype)(IDS)


def built(history: History, seed: int = 0) -> Grown:
    """The model of a history. As if trained, all values are random: no zeros and no equal rows remain."""
    generator = torch.Generator().manual_seed(seed)

    def trained(values: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: v + 0.1 * torch.randn(v.shape, dtype=v.dtype, generator=generator) for name, v in values.items()}

    values = {name: initial_parameter(name, history.base, seed).double() for name in parameter_shapes(history.base)}
    model = Grown(history.base, trained(values))
    for growth in history.growths:
        model = grow(model, growth, seed)
        model = Grown(moved(model.config, growth.policy.tau, growth.share), trained(model.values))
    return model._replace(config=history.config)


def grow(model: Grown, growth: Growth, seed: int = 0) -> Grown:
    """The model right after a growth."""
    config = growth.of(model.config)
    drawn = draw_added(model.config, config, seed, growth.policy, model.values.__getitem__, model.rms_of)
    return Grown(config, model.values | {name: value.double() for name, value in drawn})
