"""Renders sections as an HTML page that needs no other file, loads nothing, and runs no script but its own."""

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from growctl.bugs import growctl_version
from growctl.content import interactive
from growctl.content.chart import Chart
from growctl.report_page.table import page_table
from growctl.text.escaping import visible
from growctl.text.first_use import FirstUse
from growctl.text.section import Listing, Paragraph, Part, Section

HEADLINE = "headline"
"""The key of the section that the page shows large, above the contents."""

_FILES = Path(__file__).parent


def render_page(title: str, sections: Sequence[Section]) -> str:
    """The HTML page. All text is escaped, control characters too; no text becomes an element."""
    styles = (_file("page.css"), interactive.STYLE)
    scripts = (_file("page.js"), interactive.SCRIPT)
    return _environment().get_template("page.html").render(
        title=title,
        policy=_policy(styles, scripts),
        styles=[Markup(style) for style in styles],
        scripts=[Markup(script) for script in scripts],
        headline=next((section for section in sections if section.key == HEADLINE), None),
        sections=[section for section in sections if section.key != HEADLINE],
        explained=FirstUse().explained,
        version=growctl_version(),
    )  # fmt: skip


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FILES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = _prose
    environment.globals |= {"kind": _kind, "table": page_table, "chart_html": interactive.chart_html}
    return environment


def _finalize(value: Any) -> Any:
    """What a template prints for a value: markup as it is, text with its control characters as escapes."""
    return value if isinstance(value, Markup) else visible(str(value))


def _prose(text: str) -> Markup:
    """Sentences as HTML, with what stands between backticks as code."""
    pieces = [escape(visible(piece)) for piece in text.split("`")]
    if len(pieces) % 2 == 0:
        return escape(visible(text))  # a backtick without its partner is one
    return Markup().join(
        Markup("<code>{}</code>").format(piece) if number % 2 else piece for number, piece in enumerate(pieces)
    )


def _kind(part: Part) -> str:
    """The name of the macro that renders a part."""
    if isinstance(part, Chart):
        return "chart"
    if isinstance(part, Paragraph):
        return part.tone
    return "listing" if isinstance(part, Listing) else "table"


def _policy(styles: Sequence[str], scripts: Sequence[str]) -> str:
    """The Content-Security-Policy: nothing but these styles and scripts, by their hashes."""
    return (
        f"default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src {' '.join(map(_hash, styles))}; script-src {' '.join(map(_hash, scripts))}"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _file(name: str) -> str:
    return (_FILES / name).read_text()
