"""What a terminal shows of sections: the most important, or everything that is text."""

from collections.abc import Sequence
from dataclasses import replace

from growctl.content.chart import Chart
from growctl.content.section import Paragraph, Part, Section, Table


def for_terminal(sections: Sequence[Section], *, details: bool = False) -> list[Section]:
    """`sections` without charts, which are the page's. Without `details`, only what belongs in the terminal."""
    shown = (_shown(section, details) for section in sections if details or section.in_terminal)
    return [section for section in shown if not all(_is_heading(part) for part in section.parts)]


def _shown(section: Section, details: bool) -> Section:
    parts: list[Part] = []
    for part in section.parts:
        if isinstance(part, Table) and not details:
            groups = tuple(rows for rows in part.groups if not rows.is_detail)
            parts += [replace(part, groups=groups)] if groups else []
        elif not isinstance(part, Chart):
            parts.append(part)
    return replace(section, parts=tuple(parts))


def _is_heading(part: Part) -> bool:
    return isinstance(part, Paragraph) and part.tone == "heading"
