"""Makes the tables of keys in docs/formats.md."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from growctl.text.document_schema import document_schema
from tools.pages import REPOSITORY, filled

PAGE = REPOSITORY / "docs/formats.md"

_WORDS = {"string": "text", "boolean": "true or false"}
_COMMON = ("event", "attempt", "step", "seconds", "crc32")
"""The keys that all lines of metrics.jsonl have."""


def with_tables(page: str) -> str:
    """`page` with an up-to-date table of keys between its marks."""
    return filled(
        page,
        {
            "metrics": metrics_tables,
            "samples": partial(nested_tables, "samples"),
            "scores": partial(nested_tables, "scores"),
        },
    )


def metrics_tables() -> str:
    """A table of the keys that all lines of metrics.jsonl have, then one for each kind of line."""
    schema = document_schema("metrics")
    kinds = {name: kind for name, kind in schema["$defs"].items() if "event" in kind["properties"]}
    common = {key: value for key, value in kinds["StartLine"]["properties"].items() if key in _COMMON}
    names = [f"`{kind['properties']['event']['const']}`" for kind in kinds.values()]
    event = {"enum": sorted(name.strip("`") for name in names), "description": "The kind of the line."}
    parts = ["Every line has:\n", _table({"event": event} | {key: common[key] for key in _COMMON[1:]}, schema["$defs"])]
    order = [reference["$ref"].rpartition("/")[2] for reference in schema["oneOf"]]
    for kind in (kinds[name] for name in order):
        parts.append(f"**`{kind['properties']['event']['const']}`**: {kind['description']}\n")
        own = {key: value for key, value in kind["properties"].items() if key not in _COMMON}
        if own:
            parts.append(_table(own, schema["$defs"]))
    for name, inner in schema["$defs"].items():
        if name not in kinds:
            parts += [f"`{name}`: {inner.get('description', '')}\n", _table(inner["properties"], schema["$defs"])]
    return "\n".join(parts)


def nested_tables(name: str) -> str:
    """A table of the keys of a document, then one for each kind of object in it."""
    schema = document_schema(name)
    objects = schema.get("$defs", {})
    parts = [_table(schema["properties"], objects)]
    for title, inner in objects.items():
        if "properties" in inner:
            parts += [f"`{title}`: {inner.get('description', '')}\n", _table(inner["properties"], objects)]
    return "\n".join(parts)


def _table(properties: Mapping[str, Any], objects: Mapping[str, Any]) -> str:
    lines = ["| key | value | meaning |", "| --- | --- | --- |"]
    for key, value in properties.items():
        meaning = value.get("description", "").replace("|", "\\|")
        lines.append(f"| `{key}` | {' or '.join(_values(value, objects))} | {meaning} |")
    return "\n".join(lines) + "\n"


def _values(schema: Mapping[str, Any], objects: Mapping[str, Any]) -> Iterator[str]:
    """What a value may be, in words."""
    if "anyOf" in schema:
        for inner in schema["anyOf"]:
            yield from _values(inner, objects)
    elif "$ref" in schema:
        yield f"`{schema['$ref'].rpartition('/')[2]}`"
    elif "enum" in schema:
        yield from (f"`{value}`" for value in schema["enum"])
    elif "const" in schema:
        yield f"`{json.dumps(schema['const'])}`"
    elif schema.get("type") == "array":
        yield f"list of {' or '.join(_values(schema.get('items', {}), objects)) or 'values'}"
    else:
        yield _WORDS.get(schema.get("type", ""), schema.get("type", "any value"))
