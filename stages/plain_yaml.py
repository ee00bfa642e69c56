"""Reads YAML files into plain data, with limits on their size and on what aliases expand to. Imports no torch."""

from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader
from omegaconf.errors import OmegaConfBaseException

from model.errors import UserError

MOST_BYTES = 10**6
"""Largest file; those that people write have a few thousand bytes."""
MOST_VALUES = 10_000
"""Most values in a file with its aliases expanded: ten lines of aliases of aliases expand to billions."""
_LONGEST_NUMBER = 1000
"""Most characters of a number. Python refuses to print more than 4300 digits, so no message could show it."""

ODD_TAG = (LookupError, AttributeError, TypeError)
"""What PyYAML raises, besides ValueError, for a value that does not fit its tag."""
UNREADABLE = (OmegaConfBaseException, yaml.YAMLError, ValueError, RecursionError, *ODD_TAG)
"""What OmegaConf and PyYAML raise for malformed YAML."""


def read_text(path: Path, kind: str) -> str:
    """The text of a file. Raises UserError, which says what a `kind` has, if it is too long; UnicodeDecodeError if it
    is not UTF-8; OSError if it cannot be read."""
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise UserError(f"has more than {MOST_BYTES:,} bytes; a {kind} has a few thousand")
    return content.decode()


def parse(text: str, kind: str) -> Any:
    """The plain data of a YAML text, as OmegaConf reads it, with interpolations unresolved.

    Raises UserError, which says what a `kind` has, if it expands to too many values; UNREADABLE if it is malformed.
    """
    loader = get_yaml_loader()(text)  # libyaml's is faster, but crashes Python on deeply nested text
    node = loader.get_single_node()
    if _num_values(node, {}) > MOST_VALUES:
        raise UserError(f"expands to more than {MOST_VALUES:,} values; a {kind} has a few hundred")
    return None if node is None else loader.construct_document(node)


def why_unreadable(error: Exception) -> str:
    """One line for what `read_text` and `parse` raise."""
    if isinstance(error, ODD_TAG):
        return "a tag, such as !!bool, does not fit its value"
    if isinstance(error, RecursionError):
        return "it is nested too deeply, or contains itself"
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return getattr(error, "strerror", None) or str(error).splitlines()[0]


def _num_values(node: Any, counted: dict[int, int]) -> int:
    """The number of values in a YAML tree with its aliases expanded; `counted` caches it by node.

    Raises RecursionError for a node that contains itself, UserError for a number with too many characters.
    """
    if counted.get(id(node)) == 0:
        raise RecursionError
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:int" and len(node.value) > _LONGEST_NUMBER:
        raise UserError(f"line {node.start_mark.line + 1}: a number of {len(node.value)} characters")
    if id(node) not in counted:
        counted[id(node)] = 0
        below = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = chain.from_iterable(below) if isinstance(node, yaml.MappingNode) else below
        counted[id(node)] = 1 + sum(_num_values(part, counted) for part in parts)
    return counted[id(node)]
