"""Builds and parses the names under which checkpoints store a model's parameters.

Imports no torch.
"""

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple, Self

EMBEDDING = "embedding.weight"
FINAL_NORM = "final_norm"

TokenKind = Literal["key", "value"]
TOKEN_KINDS: tuple[TokenKind, ...] = ("key", "value")

OptimizerName = Literal["adamw", "muon"]
"""What updates the matrices of the blocks. AdamW updates all other parameters in either case."""

GroupKind = Literal["decay", "muon", "no-decay"]
GROUP_KINDS: tuple[GroupKind, ...] = ("decay", "muon", "no-decay")
"""The kinds of parameter groups, in their order within a generation: AdamW's matrices, Muon's, and vectors."""

_IN_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")
_TOKENS = re.compile(r"(\w+)\.(key|value)_tokens\.(\d+)")


def in_block(block: int, name: str) -> str:
    """The full name of the parameter that the block with this id calls `name`."""
    return f"blocks.{block}.{name}"


def split_block(parameter_name: str) -> tuple[int, str] | None:
    """(the id of the block, what it calls the parameter); None for a parameter outside the blocks."""
    match = _IN_BLOCK.fullmatch(parameter_name)
    return (int(match[1]), match[2]) if match else None


class TokensName(NamedTuple):
    """The name of one generation's parameter tokens: the keys or the values of one Pattention."""

    block: int
    """The block's id (`TokenformerConfig.block_ids`)."""

    pattention: str
    kind: TokenKind
    generation: int

    def __str__(self) -> str:
        return in_block(self.block, f"{self.pattention}.{self.kind}_tokens.{self.generation}")

    @classmethod
    def parse(cls, parameter_name: str) -> Self | None:
        """What the name says; None where it is not one of parameter tokens."""
        block, name = split_block(parameter_name) or (0, "")
        match = _TOKENS.fullmatch(name)
        if match is None:
            return None
        return cls(block, match[1], "key" if match[2] == "key" else "value", int(match[3]))


def generation_of(parameter_name: str) -> int:
    """The generation that a parameter belongs to; everything that is not a parameter token is of generation 0."""
    tokens = TokensName.parse(parameter_name)
    return tokens.generation if tokens else 0


def group_kind(parameter_name: str, num_dimensions: int, optimizer: OptimizerName = "adamw") -> GroupKind:
    """The kind of group that a parameter belongs to. Muon updates the matrices of the blocks, and only matrices decay.

    The name decides what Muon updates, because under ZeRO-3 an engine's parameters lose their shapes.
    """
    if num_dimensions < 2:
        return "no-decay"
    return "muon" if optimizer == "muon" and split_block(parameter_name) else "decay"


def group_name(parameter_name: str, num_dimensions: int, optimizer: OptimizerName = "adamw") -> str:
    """The name of a parameter's group, `generation-0-decay` for example."""
    return f"generation-{generation_of(parameter_name)}-{group_kind(parameter_name, num_dimensions, optimizer)}"


def has_muon(group_names: Iterable[str]) -> bool:
    """Whether Muon updates one of these groups."""
    return any(name.endswith("-muon") for name in group_names)
