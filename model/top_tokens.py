"""Which parameter tokens a data token reads in use, in place of all, and what that costs.

Imports no torch.
"""

from collections.abc import Collection, Iterable
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from model.errors import UserError
from model.flops import forward_flops_per_token
from model.shapes import ModelConfig
from model.strict import Strict
from model.tokenformer_config import PATTENTIONS, TokenformerConfig, pattention_widths


class TopTokens(Strict):
    """The parameter tokens that a data token reads in a Pattention: those with the largest factors on their values.

    The factor is |theta(X K^T)|, with GELU: without, large negative scores, which GELU silences, would count as much as
    large positive ones.
    """

    amount: PositiveInt | Annotated[float, Field(gt=0, le=1)]
    """How many: an int, or as a float, the share of those that the Pattention has."""

    norm: Literal["all", "chosen"] = "all"
    """Whether the norm is over the scores of all tokens, or over those of the chosen ones."""

    def count(self, num_tokens: int) -> int:
        """How many of `num_tokens` parameter tokens are read; at least one."""
        return self.amount if isinstance(self.amount, int) else max(1, round(self.amount * num_tokens))


def require_tokens(config: ModelConfig, tops: Iterable[TopTokens]) -> None:
    """Raises UserError unless each Pattention of the model has as many parameter tokens as are to be read."""
    for top in tops:
        if not isinstance(config, TokenformerConfig):
            raise UserError("a decoder has no parameter tokens of which to read the top; that is for a tokenformer")
        for name, pattention in config.pattentions():
            if top.count(there := pattention.num_read) > there:
                raise UserError(
                    f"top-k tokens = {top.amount}: of each {name} Pattention, only {there} are read; give fewer"
                )


def share_and_flops_read(
    config: TokenformerConfig, top: TopTokens, kinds: Collection[str], context: int, layer: int | None = None
) -> tuple[float, float]:
    """What a data token reads if it reads only `top` in the Pattentions of these kinds, of all layers or of one: the
    share of their tokens, and the FLOPs of its forward pass in a sequence of `context` data tokens.

    All keys count, because every score is computed to choose the tokens, and the values that are read.
    """
    num_tokens = num_read = 0
    flops = forward_flops_per_token(config, context).total
    for place, (name, pattention) in enumerate(config.pattentions()):
        if name in kinds and layer in (None, place // len(PATTENTIONS)):
            there, read = pattention.num_read, top.count(pattention.num_read)
            num_tokens, num_read = num_tokens + there, num_read + read
            flops -= 2 * (there - read) * pattention_widths(config, name)[1]
    return num_read / max(1, num_tokens), flops
