"""The page shows every part of every section, escapes all text, and refers to nothing outside itself."""

import re
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.report.chart import Axis, Chart, Mark, Rule, Series
from growctl.report.drawing import FigureFormat, _draw, figure_file
from growctl.report.page import render_page
from growctl.text.section import Cell, Column, Listing, Paragraph, Rows, Section, Table, Tone
from tests.growctl.report.parsed import ParsedPage

WHY = "It is unfinished, so its loss is not known."


def sections(text: str = "some text") -> list[Section]:
    """Every kind of part, with `text` wherever there is text."""
    table = Table(
        "sizes",
        (Column(text, is_number=False), Column(text), Column("loss")),
        (
            Rows(
                ((Cell(text), Cell("9", 9.0), Cell("-", why=WHY)), (Cell(text), Cell("10", 10.0, text), Cell("2", 2.0)))
            ),
            Rows(((Cell(text), Cell(text), Cell("-", why=WHY)),), text, text, (text,)),
        ),
        caption=text,
    )
    marks = (Mark(1e9, 3.0), Mark(2e9, 2.0, is_end=True))
    series, rules = (Series(text, marks, "ladder", text, text),), (Rule(1.5e9, text),)
    chart = Chart("curve", text, text, Axis(text, is_log=True), Axis(text), series, rules)
    return [
        Section("headline", "Headline", (Paragraph(text, "strong"), Paragraph(text))),
        Section("first", text, tuple(Paragraph(text, tone) for tone in get_args(Tone))),
        Section("figures", text, (table, chart, Listing(text, text, is_command=True), Listing(text, text))),
        Section("method", "Method", (Paragraph(text),), is_detail=True),
    ]


@pytest.fixture(scope="module")
def page() -> ParsedPage:
    return ParsedPage(render_page("The title", sections()))


def test_the_headline_is_first_in_the_main_part_and_the_contents_follow_it(page: ParsedPage) -> None:
    [main] = page.all("main")
    within = [element for element in page.elements if main in element.parents]
    assert [element.tag for element in within if main is element.parents[-1]] == ["section", "nav", "div"]
    assert [p.text for p in page.all("p") if p.parents[-1].attributes.get("id") == "headline"] == ["some text"] * 2


def test_every_section_below_the_headline_is_in_the_contents(page: ParsedPage) -> None:
    links = [link.attributes["href"] for link in page.all("a") if link.is_within("nav")]
    assert links == ["#first", "#figures", "#method"]
    assert {section.attributes["id"] for section in page.all("section")} == {link[1:] for link in links} | {"headline"}


def test_headings_go_down_one_level_at_a_time_from_the_only_title(page: ParsedPage) -> None:
    levels = [int(element.tag[1]) for element in page.elements if re.fullmatch(r"h\d", element.tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_every_reference_within_the_page_has_its_target_and_ids_are_unique(page: ParsedPage) -> None:
    ids = [element.attributes["id"] for element in page.elements if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    for element in page.elements:
        targets = [element.attributes[name][1:] for name in ("href",) if name in element.attributes]
        for name in ("aria-labelledby", "aria-describedby"):
            targets += element.attributes.get(name, "").split()
        assert set(targets) <= set(ids), element


def test_each_tone_of_a_paragraph_has_its_element(page: ParsedPage) -> None:
    for tone in ("plain", "strong", "note"):
        assert page.all("p", class_=tone)[0].text == "some text"
    [warning] = page.all("p", class_="warning")
    assert warning.text == "Warning: some text"
    assert "some text" in [heading.text for heading in page.all("h3")]


def test_a_table_has_headers_for_columns_rows_and_groups(page: ParsedPage) -> None:
    rows = [element for element in page.all("th") if element.is_within("main") and not element.is_within("figure")]
    scopes = [element.attributes["scope"] for element in rows]
    assert scopes == ["col"] * 3 + ["row", "row", "rowgroup", "row"]
    [region] = page.all("div", class_="wide")
    assert (region.attributes["role"], region.attributes["tabindex"]) == ("region", "0")
    assert region.attributes["aria-label"] == "Table: some text (figures-1)"


def test_why_cells_are_empty_or_unusual_stands_once_below_their_rows(page: ParsedPage) -> None:
    notes = [row.text.strip() for row in page.all("tr", class_="note")]
    assert notes == [WHY, "Some text", WHY, "some text"]


def test_a_listing_keeps_its_first_empty_line() -> None:
    [code] = ParsedPage(render_page("t", [Section("s", "S", (Listing("l", "\n\tdef f():\n"),))])).all("code")
    assert code.text == "\n\tdef f():\n"


def test_a_detail_is_folded_and_the_rest_is_not(page: ParsedPage) -> None:
    [details] = page.all("details")
    assert "open" not in details.attributes
    assert details.parents[-1].attributes["id"] == "method"


def test_a_chart_is_drawn(page: ParsedPage) -> None:
    [image] = page.all("img")
    assert (image.attributes["id"], image.attributes["alt"]) == ("chart-curve", "some text. some text")


def test_the_page_has_no_script_and_refers_to_nothing_else(page: ParsedPage) -> None:
    [policy] = page.all("meta", http_equiv="Content-Security-Policy")
    directives = dict(part.strip().split(" ", 1) for part in policy.attributes["content"].split(";"))
    assert directives["default-src"] == "'none'"
    assert "script-src" not in directives
    assert not page.all("script")
    outward = {"srcset", "action", "data", "poster", "ping"}
    for element in page.elements:
        names = element.attributes.keys()
        assert not names & outward, element
        assert not [name for name in names if name.startswith("on")], element
        assert element.attributes.get("href", "#").startswith("#"), element
        assert element.attributes.get("src", "data:").startswith("data:"), element
    text = render_page("t", sections())
    assert not re.search(r"https?://|@import|url\((?!#)|<link|<iframe|<object|<base", text)


HOSTILE = st.sampled_from(
    ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</style><b>", "--><i>", "{{ 7 * 7 }}", "'", "&lt;"]
)


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=20) | HOSTILE | st.binary(max_size=4).map(lambda b: b.decode(errors="surrogateescape")))
@pytest.mark.slow
def test_no_text_adds_an_element_or_an_attribute(text: str) -> None:
    text = f"x{text}"  # an empty text leaves some attributes out
    rendered = render_page(text, sections(text))
    rendered.encode()
    assert ParsedPage(rendered).structure == ParsedPage(render_page("x", sections("x"))).structure


def test_control_characters_and_markup_are_shown_as_what_they_are() -> None:
    text = "<script>\0\x1b[2J\u202e&amp;"
    [heading] = ParsedPage(render_page(text, [])).all("h1")
    assert heading.text == "<script>\\x00\\x1b[2J\\u202e&amp;"


def test_a_page_without_sections_still_has_its_title_and_landmarks() -> None:
    page = ParsedPage(render_page("Nothing yet", []))
    assert [len(page.all(tag)) for tag in ("header", "main", "nav", "footer", "h1", "title")] == [1] * 6
    assert page.all("html")[0].attributes["lang"] == "en"


def test_a_note_that_explains_a_cell_too_is_shown_once() -> None:
    rows = Rows(((Cell("-", why="this was never measured."),),), notes=("This was never measured.", "Another note."))
    html = render_page("Title", [Section("one", "One", (Table("one", (Column("loss"),), (rows,)),))])
    assert html.lower().count("this was never measured.") == 1
    assert html.count("Another note.") == 1


def test_what_stands_between_backticks_is_code_and_still_text() -> None:
    said = Section("one", "One", (Paragraph("`run <b>` it"), Paragraph("one ` backtick")))
    html = render_page("Title", [said])
    assert "<code>run &lt;b&gt;</code> it" in html
    assert "one ` backtick" in html


@pytest.mark.parametrize("is_log", [True, False])
def test_every_mark_lies_within_the_limits_of_its_chart_and_is_drawn_in_every_format(is_log: bool) -> None:
    marks = (Mark(1e9, 3.0), Mark(2e11, 2.0, is_end=True))
    axis, rules = Axis("FLOPs", is_log=is_log), (Rule(1.5e9, "a growth"),)
    chart = Chart("a", "A", "", axis, Axis("loss"), (Series("one", marks, "ladder", "one", "one"),), rules)
    [axes] = _draw(chart).axes
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    assert all(left <= mark.x <= right and bottom <= mark.y <= top for mark in marks)
    assert all(figure_file(chart, kind) for kind in get_args(FigureFormat))
