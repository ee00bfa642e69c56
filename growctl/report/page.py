"""Renders sections as an HTML page: one file without a script that loads nothing."""

import base64
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import matplotlib
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from growctl.bugs import growctl_version
from growctl.report.chart import Chart
from growctl.report.drawing import figure_file
from growctl.text.escaping import visible
from growctl.text.section import Paragraph, Part, Rows, Section

_FILES = Path(__file__).parent


def render_page(title: str, sections: Sequence[Section]) -> str:
    """The HTML page. All text is escaped, control characters too; no text becomes an element."""
    return _environment().get_template("page.html").render(
        title=title,
        style=Markup((_FILES / "page.css").read_text()),
        headline=next((section for section in sections if section.key == "headline"), None),
        sections=[section for section in sections if section.key != "headline"],
        version=growctl_version(),
    )  # fmt: skip


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FILES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else visible(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = _prose
    environment.globals |= {"kind": _kind, "notes_of": _notes, "svg_of": _svg}
    return environment


def _prose(text: str) -> Markup:
    """Sentences as HTML, with what stands between backticks as code."""
    pieces = [escape(visible(piece)) for piece in text.split("`")]
    if len(pieces) % 2 == 0:
        return escape(visible(text))  # a backtick without its partner is one
    return Markup().join(
        Markup("<code>{}</code>").format(piece) if number % 2 else piece for number, piece in enumerate(pieces)
    )


def _svg(chart: Chart) -> str:
    """The address of an image that is part of the page. Letters as shapes would take twice the room."""
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        return f"data:image/svg+xml;base64,{base64.b64encode(figure_file(chart, 'svg')).decode()}"


def _kind(part: Part) -> str:
    return part.tone if isinstance(part, Paragraph) else type(part).__name__.lower()


def _notes(rows: Rows) -> list[str]:
    """What stands below rows: why cells are empty or unusual, and their notes, each sentence once."""
    whys = (cell.why[:1].upper() + cell.why[1:] for row in rows.rows for cell in row if cell.why)
    return list(dict.fromkeys((*whys, *rows.notes)))
