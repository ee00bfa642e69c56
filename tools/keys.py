"""Makes docs/keys.md, the reference of every key of a schedule, from the schema in growctl/schedule/."""

import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from growctl.schedule.blocks import Schedule
from growctl.schedule.fields import blocks_by_path, parse_count, parse_duration, parse_size, user_keys
from growctl.schedule.json_schema import schedule_schema
from growctl.text.formatting import duration
from tools.pages import REPOSITORY

PAGE = REPOSITORY / "docs/keys.md"

_START = """\
# Every key

<!-- `make docs` writes this page from growctl/schedule/. Do not edit it by hand. -->

Every key of a [schedule](schedules.md), with its default, its unit and the values it may have. A dot leads into a
block: `training.batch_size` is the key `batch_size` in the block `training:`. `N` stands for the number of an entry in
a list, counted from 0: `stages.0.train_tokens` is the budget of the first stage. You can set every key in the file, or
on the command line:

```
growctl validate quickstart training.batch_size=32 stages.0.train_tokens=2M
```

`growctl schema` prints the same as a JSON Schema, which editors use to complete and check a schedule.

"""

_DEFAULTS = """
### `defaults`

{description}

- Default: `[_self_]`
- Allowed: a list of names, paths and choices
- Example: `defaults: [quickstart, {{launch: slurm}}, _self_]`
"""

_QUANTITIES: dict[Callable[[Any], int], tuple[str, str]] = {
    parse_count: ("a whole number", ", also written as `2.5k`, `300M` or `15B`"),
    parse_duration: ("a duration", ": `90m`, `36h`, `1d 12h` or seconds"),
    parse_size: ("a size", ": `40GiB`, `80GB`, `512MiB` or bytes"),
}
"""What people may write for a quantity, by the function that parses it. Only counts have a range worth naming."""


@dataclass(frozen=True)
class Key:
    """One key of a schedule as the page shows it."""

    path: str
    """Its dotted path, with N for the entry of a list."""
    field: FieldInfo

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def description(self) -> str:
        """The meaning, on one line; empty if the schema has none."""
        return " ".join((self.field.description or "").split())

    @property
    def unit(self) -> str | None:
        """The unit of its numbers; None if it has none."""
        extra = self.field.json_schema_extra
        return str(extra["unit"]) if isinstance(extra, dict) and "unit" in extra else None

    @property
    def example(self) -> str | None:
        """A line of YAML that sets the key; None if the schema has no example."""
        return f"{self.name}: {as_yaml(self.field.examples[0])}" if self.field.examples else None

    @property
    def default(self) -> str:
        """The default, in words or as YAML."""
        if self.field.is_required():
            return "none; the key is required"
        value = self.field.default
        if value is None:
            return "not set"
        return f"`{as_yaml(value)}`" + (f" ({duration(value)})" if self.unit == "seconds" else "")

    @property
    def allowed(self) -> str:
        """The values that it may have, in words."""
        return ", or ".join(_allowed(self.field.annotation, self.field.metadata))

    @property
    def entry(self) -> str:
        """The part of the page on this key."""
        unit = f". Unit: {self.unit}" if self.unit else ""
        return (
            f"\n### `{self.path}`\n\n{_wrapped(self.description)}\n\n"
            f"- Default: {self.default}{unit}\n- Allowed: {self.allowed}\n- Example: `{self.example}`\n"
        )


def keys_of(path: str, block: type[BaseModel]) -> list[Key]:
    """The keys with values in the block at `path`. The blocks inside it are not among them."""
    fields = user_keys(block).items()
    return [Key(f"{path}.{name}".lstrip("."), field) for name, field in fields if not _is_block(field.annotation)]


def every_key() -> Iterator[Key]:
    """Every key of a schedule that has a value, block after block."""
    for path, block in blocks_by_path(Schedule):
        yield from keys_of(path, block)


def page() -> str:
    """The text of docs/keys.md."""
    blocks = list(blocks_by_path(Schedule))
    rows = [f"| [{_title(path)}](#{_anchor(_title(path))}) | {_first_sentence(block)} |\n" for path, block in blocks]
    sections = [_section(path, block) for path, block in blocks]
    return "".join([_START, "| block | what it sets |\n| --- | --- |\n", *rows, *sections])


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


def _section(path: str, block: type[BaseModel]) -> str:
    described = schedule_schema()["properties"]["defaults"]["description"]
    defaults = _DEFAULTS.format(description=_wrapped(f"{described} [More on this](schedules.md#from-other-files)."))
    entries = [key.entry for key in keys_of(path, block)]
    return f"\n## {_title(path)}\n\n{_wrapped(_docstring(block))}\n" + "".join(
        entries if path else [defaults, *entries]
    )


def _title(path: str) -> str:
    return f"`{path}`" if path else "The top level"


def _anchor(title: str) -> str:
    """The anchor that GitHub and mkdocs give to a heading."""
    return re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _docstring(block: type[BaseModel]) -> str:
    return " ".join((block.__doc__ or "").split())


def _first_sentence(block: type[BaseModel]) -> str:
    return re.split(r"(?<=[.]) ", _docstring(block))[0].rstrip(".")


def _is_block(annotation: Any) -> bool:
    """Whether a value is always a block or a list of blocks: it then has no example of its own."""
    if get_origin(annotation) in (Annotated, list):
        return _is_block(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return all(_is_block(each) for each in get_args(annotation) if each is not NoneType)
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _allowed(annotation: Any, marks: list[Any]) -> list[str]:
    """The alternatives that a type allows, in words. `marks` are its limits and validators."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = [mark for each in arguments[1:] for mark in (each.metadata if isinstance(each, FieldInfo) else [each])]
        return _allowed(arguments[0], [*inner, *marks])
    if origin in (Union, UnionType):
        return [words for each in arguments if each is not NoneType for words in _allowed(each, marks)]
    if origin is Literal:
        return [", ".join(f"`{as_yaml(value)}`" for value in arguments)]
    if origin is list:
        return [f"a list{_length(marks)}; each entry is {', or '.join(_allowed(arguments[0], []))}"]
    if origin is dict:
        return ["a block of names and values; each name is " + ", or ".join(_allowed(arguments[0], []))]
    if annotation is bool:
        return ["`true`, `false`"]
    if annotation is str:
        return [f"text{_characters(marks)}"]
    if annotation is float:
        return [f"a number{_range(marks)}"]
    if annotation is int:
        parsers = [mark.func for mark in marks if isinstance(mark, BeforeValidator)]
        what, forms = next((_QUANTITIES[parser] for parser in parsers if parser in _QUANTITIES), ("a whole number", ""))
        return [what + ("" if forms.startswith(":") else _whole_range(marks)) + forms]
    if _is_block(annotation):
        return [f"a block with {', '.join(f'`{name}`' for name in user_keys(annotation))}"]
    raise TypeError(f"{annotation}: tools/keys.py has no words for it")


def _limit(marks: list[Any], kind: type, name: str) -> Any:
    return next((getattr(mark, name) for mark in reversed(marks) if isinstance(mark, kind)), None)


def _range(marks: list[Any]) -> str:
    words = {
        "above {}": _limit(marks, Gt, "gt"),
        "{} or more": _limit(marks, Ge, "ge"),
        "below {}": _limit(marks, Lt, "lt"),
        "{} at most": _limit(marks, Le, "le"),
    }
    return "".join(f", {form.format(f'{limit:g}')}" for form, limit in words.items() if limit is not None)


def _whole_range(marks: list[Any]) -> str:
    above, least, below, most = (_limit(marks, *each) for each in ((Gt, "gt"), (Ge, "ge"), (Lt, "lt"), (Le, "le")))
    first, last = (
        above + 1 if least is None and above is not None else least,
        below - 1 if most is None and below else most,
    )
    if first is None:
        return ""
    shown = last if last is None or last < 10**10 else f"{last:.0e}".replace("e+", "e")
    return f", {first} or more" if last is None else f" from {first} to {shown}"


def _length(marks: list[Any]) -> str:
    least, most = _limit(marks, MinLen, "min_length"), _limit(marks, MaxLen, "max_length")
    if least == most is not None:
        return f" of {least}"
    return f" of {least} or more" * bool(least) + f" of {most} at most" * bool(most)


def _characters(marks: list[Any]) -> str:
    pattern = next((mark.pattern for mark in marks if getattr(mark, "pattern", None)), None)
    most, least = _limit(marks, MaxLen, "max_length"), _limit(marks, MinLen, "min_length")
    words = [f" that matches `{pattern}`"] * bool(pattern) + [f" of {most} characters at most"] * bool(most)
    return "".join(words) + ", not empty" * bool(least)
