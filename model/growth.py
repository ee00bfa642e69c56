"""Growth as tensors: the parameters that a growth adds, their initial values, and growth of a model in memory.

Growth only appends: old parameters keep their names, values and Adam moments. The moments of a new generation are
zeros. The policy's `init` determines its values; the configuration determines tau (`model.policy`).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.config import TokenformerConfig, parameter_shapes
from model.errors import UserError
from model.initialization import initial_parameter, initial_std
from model.language_model import bare_model
from model.parameter_names import TokensName
from model.policy import GrowthPolicy, ffn_tokens_in_proportion, grow_config
from model.tokenformer import Tokenformer


class ParameterState(NamedTuple):
    """One parameter with its Adam moments: three float32 tensors of the same shape.

    `exp_avg` of a matrix that Muon updates is its momentum; `exp_avg_sq` is then empty.
    """

    fp32: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor


def root_mean_square(value: Tensor) -> float:
    """sqrt(mean of squares) to six digits, so that it does not depend on the number of threads."""
    return float(f"{torch.linalg.vector_norm(value).item() / math.sqrt(value.numel()):.6g}")


def added_parameters(old: TokenformerConfig, new: TokenformerConfig) -> list[str]:
    """The names of the parameters that `new` has and `old` does not.

    Raises UserError unless `new` has every parameter of `old`, with the same shape.
    """
    old_shapes, new_shapes = parameter_shapes(old), parameter_shapes(new)
    for name, shape in old_shapes.items():
        if new_shapes.get(name) != shape:
            raise UserError(
                f"{name} has shape {list(shape)}, but {list(new_shapes.get(name, ()))} after growth; growth must not "
                "change it"
            )
    return [name for name in new_shapes if name not in old_shapes]


def draw_added(
    old: TokenformerConfig,
    new: TokenformerConfig,
    seed: int,
    policy: GrowthPolicy | None = None,
    read: Callable[[str], Tensor] | None = None,
    rms_of: Callable[[str], float] | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """The parameters that growth from `old` to `new` under `policy` adds, one at a time, float32 on the CPU.

    `read(name)` returns the value of an old parameter; init `copy` needs it. `rms_of(name)` returns the root mean
    square of an old parameter; init `matched` needs it. Raises UserError if `new` does not extend `old`.
    """
    policy, shapes = policy or GrowthPolicy(), parameter_shapes(new)
    for name in added_parameters(old, new):
        if policy.init == "copy":
            assert read is not None, "init copy needs the old values"
            yield name, _copied(name, old, new, seed, policy.copy_noise, read)
        elif f"zero-{_tokens(name).kind}" == policy.init:
            yield name, torch.zeros(shapes[name])
        elif policy.init == "matched":
            assert rms_of is not None, "init matched needs the scale of the old tokens"
            scale = _old_rms(name, old, rms_of) / initial_std(name, new)
            yield name, initial_parameter(name, new, seed) * scale
        else:
            yield name, initial_parameter(name, new, seed)


def grow_model(
    model: nn.Module,
    *,
    attention_tokens: int | Sequence[int],
    ffn_tokens: int | Sequence[int] | None = None,
    policy: GrowthPolicy | None = None,
    seed: int = 0,
) -> Tokenformer:
    """`model` with one more generation of parameter tokens, in memory. `model` itself does not change.

    The grown model shares the old parameters, so an optimizer that holds them keeps their moments; add the new ones to
    it (`model.parameter_groups`). Nothing here follows `policy.moments`: they are the caller's. Token numbers and the
    default policy are those of `grow_config`; without `ffn_tokens`, each FFN grows in its layer's own proportion. With
    the same seed, the new tokens are those that `growctl expand` draws, in the embedding's dtype and on its device.
    `model` may be wrapped, by `torch.compile` for example; the grown model is not.

    Raises UserError if the growth is invalid, as `grow_config` does, or if `model` is not a growctl model.
    """
    model = bare_model(model)
    if ffn_tokens is None:
        ffn_tokens = ffn_tokens_in_proportion(model.config, attention_tokens)
    config = grow_config(model.config, attention_tokens=attention_tokens, ffn_tokens=ffn_tokens, policy=policy)
    assert isinstance(model.config, TokenformerConfig)
    old = dict(model.named_parameters())

    def read(name: str) -> Tensor:
        return old[name].detach().to("cpu", torch.float32)

    added = draw_added(model.config, config, seed, policy, read, lambda name: root_mean_square(read(name)))
    new = {name: value.to(model.embedding.weight) for name, value in added}
    with torch.device("meta"):
        grown = Tokenformer(config)
    for name, parameter in grown.named_parameters():
        parameter.requires_grad_(name not in old or old[name].requires_grad)
    grown.load_state_dict(old | new, assign=True)
    grown.use_kernels(model.kernels)
    return grown.train(model.training)


def _tokens(name: str) -> TokensName:
    tokens = TokensName.parse(name)
    assert tokens is not None, "growth adds parameter tokens only"
    return tokens


def _old_rms(name: str, old: TokenformerConfig, rms_of: Callable[[str], float]) -> float:
    """The root mean square of the older keys or values in the Pattention of the new parameter `name`.

    Keys are taken without their ramps, values with their shares.
    """
    tokens = _tokens(name)
    pattention = old.block(tokens.block).pattentions()[tokens.pattention]
    shares = pattention.value_shares if tokens.kind == "value" else (1.0,) * len(pattention.generations)
    squares = (
        g.num_tokens * (share * rms_of(str(tokens._replace(generation=g.number)))) ** 2
        for g, share in zip(pattention.generations, shares, strict=True)
    )
    return math.sqrt(sum(squares) / pattention.num_tokens)


def _copied(
    name: str,
    old: TokenformerConfig,
    new: TokenformerConfig,
    seed: int,
    noise: float,
    read: Callable[[str], Tensor],
) -> Tensor:
    """Copies of all older tokens. Values are divided, so that old tokens and copies together give the old output.

    The configuration holds the share of the old tokens (`value_shares`). The noise on values sums to zero over the
    copies of each token, so the values of a single copy get no noise.
    """
    tokens = _tokens(name)
    kind = tokens.kind
    before = old.block(tokens.block).pattentions()[tokens.pattention]
    copies = new.block(tokens.block).pattentions()[tokens.pattention].generations[-1].copies
    shares = before.value_shares if kind == "value" else (1.0,) * len(before.generations)
    acting = [
        read(str(tokens._replace(generation=g.number))) * share
        for g, share in zip(before.generations, shares, strict=True)
    ]
    token_ND = torch.cat(acting) / (1 + copies if kind == "value" else 1)
    copy_CND = token_ND.expand(copies, *token_ND.shape)
    if noise:
        noise_CND = noise * initial_parameter(name, new, seed).view(copies, *token_ND.shape)
        copy_CND = copy_CND + (noise_CND - noise_CND.mean(0) if kind == "value" else noise_CND)
    return copy_CND.reshape(-1, token_ND.shape[-1])
