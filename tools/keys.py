"""Makes docs/keys.md, the reference of every key of a schedule, from the JSON Schema of growctl/schedule/."""

import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from growctl.schedule.blocks import Schedule
from growctl.schedule.fields import Count, Duration, Size, blocks_by_path
from growctl.schedule.json_schema import schedule_schema
from growctl.text.formatting import byte_count, duration
from tools.tables import REPOSITORY

PAGE = REPOSITORY / "docs/keys.md"

_START = """\
# Every key

<!-- `make docs` writes this page from growctl/schedule/. Do not edit it by hand. -->

All keys of a [schedule](schedules.md), with values, unit and default. A block is a group of keys. You must set `data`,
`model`, `stages`, `training` and `learning_rate`, and the *required* keys of every block that you set. Any other key
without a default does nothing if left out, unless its entry says otherwise. A dot separates a block from its keys,
and `N` is the number of a list entry, counted from 0, as in `stages.0.train_tokens`.

A *count* is an integer such as `2.5k`, `300M` or `15B`, and at least 1 unless its key allows 0. A *duration* is written
as `90m`, `36h`, `1d 12h` or in seconds, a *size* as `40GiB`, `80GB`, `512MiB` or in bytes.
"""


def _pattern(quantity: Any) -> str:
    """The pattern of the text that people may write for a quantity."""
    pattern: str = TypeAdapter(quantity).json_schema()["anyOf"][1]["pattern"]
    return pattern


_QUANTITIES = {
    _pattern(Duration): "duration",
    _pattern(Size): "size",
    _pattern(Count): "count{}",
}
"""What people may write for a quantity, by its pattern. Only counts have a range worth naming."""

_NOBODY_REACHES = 10**5
"""The least upper limit that is not shown."""

_RANGE = {"exclusiveMinimum": "> {:g}", "minimum": ">= {:g}", "exclusiveMaximum": "< {:g}", "maximum": "<= {:g}"}
_OWN_WORDS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
_SCHEMA = Schedule.model_json_schema()
_BLOCKS: dict[str, Any] = _SCHEMA["$defs"] | {"Schedule": _SCHEMA}
"""The JSON Schema of every block, by the name of its class."""


@dataclass(frozen=True)
class Key:
    """One key of a schedule as the page shows it."""

    path: str
    """Its dotted path, with N for the entry of a list."""
    schema: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def description(self) -> str:
        """The meaning, on one line; empty if the schema has none."""
        return _one_line(self.schema.get("description", ""))

    @property
    def example(self) -> str | None:
        """A line of YAML that sets the key; None if the schema has no example."""
        return f"{self.name}: {as_yaml(self.schema['examples'][0])}" if "examples" in self.schema else None

    @property
    def allowed(self) -> str:
        """The values that it may have, in words."""
        return _allowed(self.schema)

    def _says(self, unit: str) -> bool:
        """Whether the description names the unit."""
        return unit.split()[-1].lower() in self.description.lower().split(".")[0]

    @property
    def entry(self) -> str:
        """The part of the page on this key, with its example where neither default nor values show the form."""
        unit, default, value = self.schema.get("unit"), "required", self.schema.get("default")
        if "default" in self.schema:
            known = {"seconds": duration, "bytes": byte_count}.get(str(unit), as_yaml)
            default = "" if value is None else f"default `{known(value)}`"
        if unit and (unit in ("seconds", "bytes") or unit.startswith("pure number") or self._says(unit)):
            unit = None
        allowed, values, description = self.allowed, self.schema.get("enum", ()), self.description
        description = re.sub(r"docs/([\w-]+)\.md", r"[\1](\1.md)", description)
        for word in re.findall(r"`([\w-]+)`", allowed):
            description = re.sub(rf"(?<![\w`{{-]){word}:", f"`{word}`:", description)
        if default and (allowed == "`true`, `false`" or (values and all(f"{v}:" in self.description for v in values))):
            allowed = ""  # the description lists the values
        facts = "; ".join(filter(None, (allowed, unit, default)))
        needs_example = value in (None, [], {}) and self.allowed.startswith(("text", "list", "block"))
        example = f" `{self.example}`" if needs_example else ""
        return _wrapped(f"- `{self.name}` ({facts}): {description}{example}", "  ") + "\n"


def every_key() -> Iterator[Key]:
    """Every key of a schedule that has a value, block after block."""
    for path, block in blocks_by_path(Schedule):
        yield from _keys(path, _BLOCKS[block.__name__])


def page() -> str:
    """The text of docs/keys.md."""
    sections, shown = "", dict[str, str]()
    for path, block in blocks_by_path(Schedule):
        title, meaning = f"`{path}`" if path else "The top level", _one_line(_BLOCKS[block.__name__]["description"])
        sections += f"\n## {title}\n\n"
        if first := shown.get(block.__name__):
            sections += f"As [`{first}`](#{first.replace('.', '').lower()}).\n"
            continue
        shown[block.__name__] = path
        sections += f"{_wrapped(meaning)}\n\n" + ("" if path else _defaults())
        sections += "".join(_entries(path, list(_keys(path, _BLOCKS[block.__name__]))))
    return _START + sections


def _entries(path: str, keys: list[Key]) -> Iterator[str]:
    """The keys of a block; of those that another block explains in the same words, only their names."""
    outer, _, number = path.rpartition(".")
    known = {key.name: key.description for key in every_key() if key.path == f"{outer.split('.')[0]}.{key.name}"}
    same = [key for key in keys if number == "N" and known.get(key.name, "").startswith(key.description)]
    if same:
        names = ", ".join(f"`{key.name}`" for key in same)
        yield _wrapped(f"- {names}: as in [`{outer.split('.')[0]}`](#{outer.split('.')[0]}).", "  ") + "\n"
    yield from (key.entry for key in keys if key not in same)


def as_yaml(value: Any) -> str:
    """A value as a schedule's YAML writes it, on one line."""
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case float():
            return f"{value:g}".replace("e+", "e") if value % 1 or abs(value) >= 1e6 else f"{value:.1f}"
        case dict():
            return "{" + ", ".join(f"{key}: {as_yaml(entry)}" for key, entry in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(as_yaml, value)) + "]"
    return str(value) if re.fullmatch(r"/?[A-Za-z0-9][\w /.-]*", value) else f'"{value}"'


def _keys(path: str, block: Mapping[str, Any]) -> Iterator[Key]:
    """The keys with values in the block at `path`. The blocks inside it are not among them: they have no example."""
    for name, schema in block["properties"].items():
        if not all("$ref" in form.get("items", form) for form in _forms(schema)):
            yield Key(f"{path}.{name}".lstrip("."), schema)


def _defaults() -> str:
    described = schedule_schema()["properties"]["defaults"]["description"]
    example = "`defaults: [quickstart, {launch: slurm}, _self_]`"
    facts = "`defaults` (list; default `[_self_]`)"
    return _wrapped(f"- {facts}: {described} [More](schedules.md#overrides-and-composition). {example}", "  ") + "\n"


def _wrapped(text: str, indent: str = "") -> str:
    text = re.sub("`[^`]*`", lambda code: code[0].replace(" ", "\0"), text)  # code stays on one line
    lines = textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\0", " ")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _forms(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The alternatives that a schema allows besides null."""
    return [form for form in schema.get("anyOf", [schema]) if form.get("type") != "null"]


def _allowed(schema: Mapping[str, Any]) -> str:
    """The values that a schema allows, in words."""
    forms = _forms(schema)
    for form in forms:
        if form.get("pattern") in _QUANTITIES:
            return _QUANTITIES[form["pattern"]].format(_whole_range(schema).removesuffix(" >= 1"))
    if "anyOf" in schema:
        return ", or ".join(map(_allowed, forms))
    if "$ref" in schema:
        block = _BLOCKS[schema["$ref"].rpartition("/")[2]]
        return f"block with {', '.join(f'`{name}`' for name in block['properties'])}"
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{as_yaml(value)}`" for value in schema.get("enum") or [schema["const"]])
    match schema["type"]:
        case "array":
            return f"list{_length(schema)}, each {_allowed(schema['items'])}"
        case "object":
            return "block of values"
        case "boolean":
            return "`true`, `false`"
        case "number":
            limits = {name: words for name, words in _RANGE.items() if schema.get(name, math.inf) < _NOBODY_REACHES}
            return "number" + ",".join(f" {words.format(schema[name])}" for name, words in limits.items())
        case "integer":
            return f"integer{_whole_range(schema)}"
    pattern, most = schema.get("pattern"), schema.get("maxLength")
    if pattern and pattern.startswith("^[A-Za-z0-9]["):  # of names, which hold no spaces
        return "text"
    return "text" + f" that matches `{pattern}`" * bool(pattern) + f" of {most} characters at most" * bool(most)


def _whole_range(schema: Mapping[str, Any]) -> str:
    """The range of a whole number; pydantic leaves that of a quantity in its own words."""
    limits = {_OWN_WORDS.get(name, name): value for name, value in schema.items()}
    first = limits["minimum"] if "minimum" in limits else limits["exclusiveMinimum"] + 1
    last = limits.get("maximum", limits.get("exclusiveMaximum", math.inf) - 1)
    return f" from {first} to {last}" if last < _NOBODY_REACHES else f" >= {first}"


def _length(schema: Mapping[str, Any]) -> str:
    least, most = schema.get("minItems"), schema.get("maxItems")
    if least == most is not None:
        return f" of {least}"
    return f" of {least} or more" * bool(least) + f" of {most} at most" * bool(most)
