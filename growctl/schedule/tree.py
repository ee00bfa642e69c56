"""Walks the blocks and keys of a schedule's schema."""

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import SkipJsonSchema


def blocks_by_path(root: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every block of the schema with its dotted path; N stands for an entry of a list."""
    yield path, root
    for name, field in user_keys(root).items():
        block, is_list = block_in(field.annotation)
        if block:
            yield from blocks_by_path(block, ".".join(filter(None, (path, name, "N" if is_list else ""))))


def user_keys(block: type[BaseModel]) -> dict[str, FieldInfo]:
    """The keys of a block without those that growctl writes, which its JSON Schema leaves out too."""
    skip = type(SkipJsonSchema())
    fields = block.model_fields.items()
    return {name: field for name, field in fields if not any(isinstance(mark, skip) for mark in field.metadata)}


def block_in(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The block that a value may be, and whether it is a list of them; None if no block is allowed."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    if get_origin(annotation) in (list, Union, UnionType, Annotated):
        for argument in get_args(annotation):
            block, is_list = block_in(argument)
            if block:
                return block, is_list or get_origin(annotation) is list
    return None, False
