"""Builds and parses the names under which checkpoints store a model's parameters.

Imports no torch.
"""

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple, Self

EMBEDDING = "embedding.weight"
EMBEDDING_BIAS = "embedding.bias"
POSITIONS = "embedding.positions"
CLASS_TOKEN = "embedding.class_token"
FINAL_NORM = "final_norm"
HEAD = "head.weight"
HEAD_BIAS = "head.bias"

TOKEN_KINDS = ("key_tokens", "value_tokens")
"""What a Pattention has of each generation."""

OptimizerName = Literal["adamw", "muon"]
"""What updates the matrices of the blocks. AdamW updates all other parameters in either case."""

GroupKind = Literal["decay", "muon", "no-decay"]
GROUP_KINDS: tuple[GroupKind, ...] = ("decay", "muon", "no-decay")
"""The kinds of parameter groups, in their order within a generation: AdamW's matrices, Muon's, and vectors."""

_PART = re.compile(r"blocks\.(\d+)\.(\w+)\.(\w+)\.(\d+)")


def in_block(block: int, name: str) -> str:
    """The full name of the parameter that the block with this id calls `name`."""
    return f"blocks.{block}.{name}"


class PartName(NamedTuple):
    """The name of a parameter in a block, `blocks.3.ffn.key_tokens.1` for example: what one growth added to a part."""

    block: int
    """The block's id (`block_ids` of the configuration)."""

    part: str
    """A Pattention, a linear layer or a norm."""

    kind: str
    """`key_tokens` or `value_tokens` of a Pattention, otherwise `weight` or `bias`."""

    generation: int

    def __str__(self) -> str:
        return in_block(self.block, self.in_block)

    @property
    def in_block(self) -> str:
        """What the block calls it."""
        return f"{self.part}.{self.kind}.{self.generation}"

    @classmethod
    def parse(cls, parameter_name: str) -> Self | None:
        """What the name says; None for a parameter outside the blocks."""
        match = _PART.fullmatch(parameter_name)
        return cls(int(match[1]), match[2], match[3], int(match[4])) if match else None


def generation_of(parameter_name: str) -> int:
    """The generation that a parameter belongs to; everything outside the blocks is of generation 0."""
    part = PartName.parse(parameter_name)
    return part.generation if part else 0


def group_kind(parameter_name: str, num_dimensions: int, optimizer: OptimizerName = "adamw") -> GroupKind:
    """The kind of group that a parameter belongs to. Muon updates the matrices of the blocks, and only matrices decay,
    except learned positions.

    The name decides what Muon updates, because under ZeRO-3 an engine's parameters lose their shapes.
    """
    if num_dimensions < 2 or parameter_name == POSITIONS:
        return "no-decay"
    return "muon" if optimizer == "muon" and PartName.parse(parameter_name) else "decay"


def group_name(parameter_name: str, num_dimensions: int, optimizer: OptimizerName = "adamw") -> str:
    """The name of a parameter's group, `generation-0-decay` for example."""
    return f"generation-{generation_of(parameter_name)}-{group_kind(parameter_name, num_dimensions, optimizer)}"


def has_muon(group_names: Iterable[str]) -> bool:
    """Whether Muon updates one of these groups."""
    return any(name.endswith("-muon") for name in group_names)
